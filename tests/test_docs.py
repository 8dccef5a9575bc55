"""The documents keep up with the code: every file has its line, every setting its row."""

import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from gateway.config import GatewaySettings
from scheduler.settings import NOT_SETTINGS, TEST_PREFIX
from worker.config import WorkerSettings

ROOT = Path(__file__).parent.parent
DOCUMENTS = (ROOT / "README.md", ROOT / "helm" / "README.md", *(ROOT / "docs").glob("*.md"))
PACKAGES = ("gateway", "quotas", "scheduler", "worker", "benchmarks")


def tracked() -> list[str]:
    """Source files under version control."""
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [name for name in listed.stdout.split() if name.endswith((".py", ".lua"))]
    return [name for name in files if not name.endswith("__init__.py")]


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


def test_the_readme_maps_every_file() -> None:
    readme = (ROOT / "README.md").read_text()
    sections = dict(re.findall(r"^### `(\w+)/`.*?\n(.*?)(?=^##|\Z)", readme, re.MULTILINE | re.DOTALL))

    missing = [name for name in tracked() if f"`{name.split('/', 1)[1]}`" not in sections[name.split("/", 1)[0]]]

    assert not missing


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
