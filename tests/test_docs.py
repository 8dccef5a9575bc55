"""The documents keep up with the code: every package has its page, every setting its row."""

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from fairlane.gateway.config import GatewaySettings
from fairlane.scheduler.protocol.settings import NOT_SETTINGS, TEST_PREFIX
from fairlane.worker.config import WorkerSettings

ROOT = Path(__file__).parent.parent
DOCUMENTS = (*ROOT.glob("*.md"), ROOT / "helm" / "README.md", *(ROOT / "docs").glob("*.md"))
ROOMS = ("cli", "gateway", "quotas", "scheduler", "store", "worker")
MOST_FILES = 22


def tracked() -> list[str]:
    """Source files under version control."""
    listed = subprocess.run(["git", "ls-files", *ROOMS], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split() if name.endswith((".py", ".lua"))]


def settings(kind: type[msgspec.Struct], prefix: str = "FAIRLANE_") -> list[str]:
    """Every setting, as its environment variable."""
    found = []
    for field in msgspec.structs.fields(kind):
        name = f"{prefix}{field.encode_name.upper()}"
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            found += settings(field.type, f"{name}__")
        elif field.encode_name not in ("gateway", "worker"):
            found.append(name)
    return found


def test_the_readme_is_a_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_every_package_says_what_stands_in_it() -> None:
    """Its page names no file that is not there."""
    for page in (name for name in tracked() if name.endswith("__init__.py")):
        said = ast.get_docstring(ast.parse((ROOT / page).read_text()))
        assert said, page
        for file in re.findall(r"`([\w/]+\.py)`", said):
            assert ((ROOT / page).parent / file).exists(), f"{page}: {file}"


def test_no_folder_is_crowded() -> None:
    crowds = Counter(Path(name).parent for name in tracked())

    assert not {str(folder): many for folder, many in crowds.items() if many > MOST_FILES}


@pytest.mark.parametrize("kind", [GatewaySettings, WorkerSettings])
def test_every_setting_has_its_row(kind: type[msgspec.Struct]) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()

    assert not [name for name in settings(kind) if f"`{name}`" not in page]


def test_every_variable_of_the_documents_is_a_setting() -> None:
    """A reader who exports one that is not could no longer start anything."""
    known = {*settings(GatewaySettings), *settings(WorkerSettings), *NOT_SETTINGS}
    for document in DOCUMENTS:
        named = set(re.findall(r"\bFAIRLANE_[A-Z_]*[A-Z]", document.read_text()))
        assert not {name for name in named - known if not name.startswith(TEST_PREFIX)}, document.name


def test_every_link_of_the_documents_leads_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
