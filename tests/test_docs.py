"""The documentation matches the code: packages, settings, metrics, API, links, file names and commands."""

import ast
import functools
import importlib.util
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer.core
import typer.main

from fairlane.cli import main as cli
from fairlane.gateway.config import GatewaySettings
from fairlane.gateway.control.openapi import document as openapi
from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.scheduler.planner.steps import WaitReason
from fairlane.scheduler.protocol.settings import NOT_SETTINGS, TEST_PREFIX
from fairlane.worker.config import WorkerSettings
from release.site.shapes import bodies
from tests.support import api_page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
DOCUMENTS = (
    *ROOT.glob("*.md"),
    ROOT / "helm" / "README.md",
    ROOT / "examples" / "README.md",
    *(ROOT / "benchmarks").rglob("*.md"),
    *DOCS.glob("*.md"),
    *DOCS.glob("runbooks/*.md"),
    *DOCS.glob("internals/*.md"),
)
ROOMS = ("cli", "common", "gateway", "quotas", "scheduler", "store", "worker")
MOST_FILES = 22
MOST_CLASS_LINES, MOST_ATTRIBUTES = 250, 25
# Classes above these limits. The list may only become shorter.
LARGE_CLASSES = {
    "Placement",
    "Planner",
    "RedisQueue",
    "Telemetry",  # one attribute per metric
}
MOST_WORDS_OF_THE_API = 14_200


def sources(*rooms: str) -> list[str]:
    """Return the source files of some top-level packages."""
    found = (path for room in rooms for path in (ROOT / room).rglob("*") if path.suffix in (".py", ".lua"))
    return sorted(str(path.relative_to(ROOT)) for path in found)


def settings(kind: type[msgspec.Struct], prefix: str = "FAIRLANE_") -> list[str]:
    """Return the environment variable of every setting."""
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


def test_every_package_has_a_docstring_that_names_only_existing_files() -> None:
    for page in (name for name in sources(*ROOMS) if name.endswith("__init__.py")):
        text = ast.get_docstring(ast.parse((ROOT / page).read_text()))
        assert text, page
        for file in re.findall(r"`([\w/]+\.py)`", text):
            assert ((ROOT / page).parent / file).exists(), f"{page}: {file}"


def test_no_folder_has_too_many_files() -> None:
    files = Counter(Path(name).parent for name in sources(*ROOMS, "benchmarks", "tests"))

    assert not {str(folder): count for folder, count in files.items() if count > MOST_FILES}


def classes(*rooms: str) -> list[tuple[str, ast.ClassDef]]:
    """Return the classes of some top-level packages, each with its file."""
    parsed = [(name, ast.parse((ROOT / name).read_text())) for name in sources(*rooms) if name.endswith(".py")]
    return [(name, node) for name, tree in parsed for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def attributes(found: ast.ClassDef) -> set[str]:
    """Return what a class assigns to itself, and the fields of a dataclass that is not frozen.

    Frozen records, settings and bodies declare as many fields as their formats have."""
    own = {
        node.attr
        for node in ast.walk(found)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    decorators = [ast.unparse(each) for each in found.decorator_list]
    if any(each.startswith("dataclass") and "frozen" not in each for each in decorators):
        own |= {
            each.target.id
            for each in found.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
    return own


def test_no_class_is_too_large() -> None:
    large = {
        found.name: name
        for name, found in classes(*ROOMS)
        if (found.end_lineno or 0) - found.lineno >= MOST_CLASS_LINES or len(attributes(found)) > MOST_ATTRIBUTES
    }

    assert not large.keys() - LARGE_CLASSES, large


def test_the_map_of_packages_names_them_all() -> None:
    page = (DOCS / "architecture.md").read_text()
    inner = [
        found.parent.name for room in ("gateway", "scheduler", "worker") for found in ROOT.glob(f"{room}/*/__init__.py")
    ]

    assert not [name for name in (*ROOMS, *inner) if f"{name}/" not in page]


@pytest.mark.parametrize("kind", [GatewaySettings, WorkerSettings])
def test_every_setting_has_its_row(kind: type[msgspec.Struct]) -> None:
    page = (DOCS / "configuration.md").read_text()

    assert not [name for name in settings(kind) if f"`{name}`" not in page]


def test_every_variable_of_the_documents_is_a_setting() -> None:
    known = {*settings(GatewaySettings), *settings(WorkerSettings), *NOT_SETTINGS}
    for document in DOCUMENTS:
        named = set(re.findall(r"\bFAIRLANE_[A-Z_]*[A-Z]", document.read_text()))
        assert not {name for name in named - known if not name.startswith(TEST_PREFIX)}, document.name


def test_every_metric_has_its_row() -> None:
    page = (DOCS / "operations.md").read_text()

    of_a_gateway = [f"{each.name}{'_total' * (each.type == 'counter')}" for each in Telemetry().registry.collect()]
    of_a_gateway = [name for name in of_a_gateway if not name.startswith("process_")]
    sources = "".join(path.read_text() for path in (ROOT / "worker").rglob("*.py"))  # importing them would need torch
    of_a_worker = re.findall(r'"(fairlane_worker_\w+)"', sources)

    assert of_a_worker
    assert not [name for name in of_a_gateway if f"`{name}`" not in page]
    assert not [name for name in of_a_worker if not re.search(rf"`{name}(_total)?`", page)]
    assert not [reason for reason in WaitReason if f"`{reason}`" not in page]


def test_the_api_s_page_is_that_of_the_document() -> None:
    assert api_page.PAGE.read_text() == api_page.page(), "docs/api.md is out of date: run `make docs`"


def test_the_api_page_names_every_call_and_every_field_of_a_body() -> None:
    page, whole = api_page.page(), openapi.document()

    for path, item in whole["paths"].items():
        for method in item:
            assert f"`{method.upper()} {path}`" in page
    for name in bodies(whole):
        for field in whole["components"]["schemas"][name].get("properties", {}):
            assert f"`{field}`" in page, f"{name}.{field}"


def test_the_api_page_is_short_and_names_schemas_without_their_modules() -> None:
    page = api_page.page()

    assert len(page.split()) <= MOST_WORDS_OF_THE_API
    assert "fairlane__" not in page


def test_every_link_of_the_documents_leads_somewhere() -> None:
    for document in DOCUMENTS:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", document.read_text()):
            page = document.parent / target if target else document
            assert page.exists(), f"{document.name}: {target}"
            assert not anchor or anchor in anchors(page), f"{document.name}: {target}#{anchor}"


def test_every_file_and_module_that_the_documents_name_is_there() -> None:
    for document in DOCUMENTS:
        text = document.read_text()
        for name in re.findall(rf"`((?:{'|'.join((*ROOMS, 'tests', 'benchmarks'))})/[\w./-]+)`", text):
            assert any((root / name).exists() for root in (ROOT, ROOT / "helm" / "templates")), (
                f"{document.name}: {name}"
            )
        for name in re.findall(r"python -m ((?:benchmarks|tests|fairlane)[\w.]*\w)", text):
            assert importlib.util.find_spec(name), f"{document.name}: python -m {name}"


def test_the_contributor_guide_lists_every_file_with_thorough_tests() -> None:
    marked = {path.name for path in Path(__file__).parent.rglob("test_*.py") if "mark.thorough" in path.read_text()}
    guide = (DOCS / "contributing.md").read_text()

    assert [name for name in sorted(marked - {Path(__file__).name}) if name not in guide] == []


def test_figures_name_no_commit() -> None:
    for document in {*DOCUMENTS} - {ROOT / "helm" / "README.md"}:
        for word in re.findall(r"\b[0-9a-f]{7,12}\b", document.read_text()):
            assert word.isdigit() or word.isalpha(), f"{document.name}: {word}"


@functools.cache
def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_command_of_the_documents_exists() -> None:
    """Check subcommands and options, in code blocks and in text."""
    for document in DOCUMENTS:
        text = document.read_text().replace("\\\n", " ")
        pasted = "".join(re.findall(r"^```(?:sh|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
        commands = re.findall(r"^(?:\S*/)?fairlane (.+?)(?: [#|] .*)?$", pasted, re.MULTILINE)
        for line in (*commands, *re.findall(r"`fairlane ([^`]+)`", text)):
            assert not unknown_words(line.split()), f"{document.name}: {line}"


def unknown_words(words: Sequence[str]) -> list[str]:
    """Return the words that are no subcommand or option. Gateway and worker parse their own arguments."""
    if words[0] in ("gateway", "worker"):
        return []
    command: Any = typer.main.get_command(cli.app)
    while words and isinstance(command, typer.core.TyperGroup):
        found = command.get_command(typer.Context(command), words[0])
        if found is None:
            return [words[0]]
        command, words = found, words[1:]
    options = {name for field in command.params for name in (*field.opts, *field.secondary_opts)}
    return [word for word in words if word.startswith("-") and word.partition("=")[0] not in options]
