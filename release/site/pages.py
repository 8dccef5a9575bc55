"""The pages of docs/ and what they link to elsewhere in the repository, in one folder for MkDocs.

Links in docs/ lead through the repository, so that they work wherever its files are shown. Here a page from elsewhere
is a page of the site under `repository/`, and any other file is a page with its text under `files/`."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import typer.main
from typer.cli import get_docs_for_click

from fairlane.cli.main import app
from release.site import endpoints

ROOT = Path(__file__).parents[2]
DOCS = PurePosixPath("docs")
OTHERS = PurePosixPath("CHANGELOG.md"), PurePosixPath("examples/README.md"), PurePosixPath("helm/README.md")
"""Pages of the site from outside docs/, in addition to those that pages link to."""
ASSETS = "gateway/control/console/static/icon.svg", "release/site/site.css"
LINK = re.compile(r"\]\((?!\w+:|#)(?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
_LANGUAGES = {".mjs": "javascript", ".py": "python", ".yaml": "yaml"}


def write(into: Path) -> None:
    """Write all pages into an empty folder."""
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(ROOT / DOCS, into)
    for asset in ASSETS:
        shutil.copy(ROOT / asset, into)
    for place, text in [*_pages(), *_generated()]:
        path = into / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _generated() -> Iterator[tuple[PurePosixPath, str]]:
    for name, text in endpoints.pages():
        yield PurePosixPath("api") / name, text
    command = typer.main.get_command(app)
    shown = get_docs_for_click(obj=command, ctx=typer.Context(command), name="fairlane")
    yield PurePosixPath("commands.md"), shown


def _pages() -> Iterator[tuple[PurePosixPath, str]]:
    """Yield each page's place and text, and then those that it links to."""
    waiting = [*(PurePosixPath(path.relative_to(ROOT)) for path in (ROOT / DOCS).rglob("*.md")), *OTHERS]
    seen = {*waiting}
    while waiting:
        source = waiting.pop()
        text = (ROOT / source).read_text()
        yield _place(source), _with_links(source, text) if source.suffix == ".md" else _in_fence(source, text)
        for found in LINK.finditer(text) if source.suffix == ".md" else ():
            target = _target(source, found["target"])
            if target not in seen and not target.is_relative_to(DOCS):
                seen.add(target)
                waiting.append(target)


def _with_links(source: PurePosixPath, text: str) -> str:
    """Lead links to the places of their targets, and show escaped bars in code, which only GitHub's tables need."""
    folder = _place(source).parent

    def link(found: re.Match[str]) -> str:
        place = _place(_target(source, found["target"]))
        return f"]({PurePosixPath(os.path.relpath(place, folder))}{found['anchor'] or ''})"

    return re.sub(r"`[^`\n]+`", lambda code: code[0].replace("\\|", "|"), LINK.sub(link, text))


def _in_fence(source: PurePosixPath, text: str) -> str:
    language = _LANGUAGES.get(source.suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# `{source}`\n\n~~~~{language}\n{text.rstrip()}\n~~~~\n"


def _place(path: PurePosixPath) -> PurePosixPath:
    """Return where the site has a file of the repository."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS)
    return PurePosixPath("repository", path) if path.suffix == ".md" else PurePosixPath("files", f"{path}.md")


def _target(source: PurePosixPath, link: str) -> PurePosixPath:
    """Return the file of the repository that a page links to."""
    return PurePosixPath(os.path.normpath(source.parent / link))
