"""The site of the documentation: its navigation, its links, and what its examples send."""

import json
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from fairlane.gateway.control.openapi.document import document
from fairlane.gateway.errors import TABLE
from release.site import endpoints, pages
from release.site.examples import BASE_URL, body_of, curl, python
from tests.support.system import browser
from tests.test_docs import anchors

ROOT = Path(__file__).parents[1]
MKDOCS = ROOT / ".venv" / "docs" / "bin" / "mkdocs"
CALLS = [
    {"path": path, "method": method.upper(), **operation}
    for path, item in document()["paths"].items()
    for method, operation in item.items()
]
SENT = [each for each in CALLS if "101" not in each["responses"]]


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "docs"
    pages.write(folder)
    return folder


def test_the_navigation_names_every_page_and_no_other(staged: Path) -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r": (\S+\.md)$", navigation, re.MULTILINE)
    found = {str(path.relative_to(staged)) for path in staged.rglob("*.md")}

    assert sorted(named) == sorted(name for name in found if not name.startswith("files/"))


def test_every_link_leads_to_a_page_of_the_site(staged: Path) -> None:
    for page in staged.rglob("*.md"):
        text = re.sub(r"^( *)(```|~~~~).*?^\1\2", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for found in re.finditer(r"\]\((?!\w+:)(?P<target>[^)#\s]*)#?(?P<anchor>[^)\s]*)\)", text):
            target = page.parent / found["target"] if found["target"] else page
            assert target.is_file(), f"{page}: {found[0]}"
            assert not found["anchor"] or found["anchor"] in anchors(target), f"{page}: {found[0]}"


def test_the_api_pages_have_every_call_with_its_examples(staged: Path) -> None:
    for each in CALLS:
        page = (staged / "api" / f"{endpoints.page_of(each['path'])}.md").read_text()
        (section,) = re.findall(
            rf"^## `{re.escape(each['method'])} {re.escape(each['path'])}`$(.+?)(?=^## |\Z)",
            page,
            re.DOTALL | re.MULTILINE,
        )
        assert each["summary"] in section
        assert section.count("===") == 2 * (each in SENT)
        assert "fairlane__" not in section


def test_every_error_has_its_row_under_its_status() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    sections = dict(re.findall(r"^### (\d+)$(.+?)(?=^##|\Z)", page, re.DOTALL | re.MULTILINE))

    assert [code for code, rule in TABLE.items() if f"`{code}`" not in sections[str(rule.status)]] == []
    assert sections.keys() == {str(rule.status) for rule in TABLE.values()}


def wanted(operation: Mapping[str, Any]) -> tuple[str, str, Any]:
    """Return the method of a call, a pattern of its path, and the body of its example."""
    return operation["method"], re.sub(r"{\w+}", r"[\\w-]+", operation["path"]), body_of(operation)


def test_curl_sends_the_calls() -> None:
    for each in SENT:
        command, *words = shlex.split(curl(each).replace("\\\n", ""))
        options, urls = {"-X": "POST" if {"-d", "-F"} & {*words} else "GET", "-d": "null"}, []
        while words:
            word = words.pop(0)
            if word in ("-X", "-d", "-F", "-H"):
                options[word] = words.pop(0)
            elif word != "-N":
                urls.append(word)
        method, path, body = wanted(each)

        assert (command, options["-X"], json.loads(options["-d"])) == ("curl", method, body), each["operationId"]
        assert [bool(re.fullmatch(re.escape(BASE_URL) + path, url)) for url in urls] == [True], each["operationId"]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str, bytes]]:
    """Record what the clients of the examples send, and answer it with nearly nothing."""
    seen: list[tuple[str, str, bytes]] = []

    def answer(module: Any, request: Any) -> Any:
        seen.append((request.method, str(request.url), request.read()))
        return module.Response(200, json={"data": [{"embedding": []}], "results_url": f"{request.url}/results"})

    transport = httpx2.MockTransport(partial(answer, httpx2))
    for module, name in ((openai, "OpenAI"), (anthropic, "Anthropic")):
        made = partial(getattr(module, name), api_key="fl-a-b", http_client=httpx2.Client(transport=transport))
        monkeypatch.setattr(module, name, made)
    plain = httpx.Client(transport=httpx.MockTransport(partial(answer, httpx)))
    monkeypatch.setattr(httpx, "request", plain.request)
    monkeypatch.setattr(httpx, "stream", plain.stream)
    monkeypatch.setenv("OPENAI_API_KEY", "fl-a-b")
    monkeypatch.setenv("FAIRLANE_ADMIN_KEY", "admin")
    monkeypatch.chdir(tmp_path)
    for name in ("requests.jsonl", "arrivals.csv"):
        (tmp_path / name).write_text("{}")
    return seen


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_python_sends_the_calls(requests: list[tuple[str, str, bytes]]) -> None:
    for each in SENT:
        requests.clear()
        exec(compile(python(each), each["operationId"], "exec"), {})  # noqa: S102 - the site's own text
        method, url, content = requests[-1]
        wanted_method, path, body = wanted(each)

        assert method == wanted_method, each["operationId"]
        assert re.fullmatch(re.escape(BASE_URL) + path, url), each["operationId"]
        assert body is None or body.items() <= json.loads(content).items(), each["operationId"]  # SDKs add defaults


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder, and yield its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        pass


@pytest.mark.thorough
@pytest.mark.skipif(not MKDOCS.exists(), reason="`make docs-site` installs MkDocs")
def test_the_site_is_built_without_a_warning_finds_words_and_asks_no_other_host(staged: Path) -> None:
    site = staged.parent / "site"
    config = (ROOT / "mkdocs.yml").read_text().replace("build/docs", str(staged)).replace("build/site", str(site))
    (staged.parent / "mkdocs.yml").write_text(config)
    done = subprocess.run(
        [MKDOCS, "build", "--strict", "--quiet"],
        cwd=staged.parent,
        env={"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    if browser.CHROMIUM is None:
        pytest.skip("there is no chromium")
    version = site.parent / "served" / "0.2"  # below a path, as each version is
    shutil.copytree(site, version)
    with serving(version.parent) as url, browser.browsing() as chromium:
        page = chromium.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{url}0.2/")
        page.get_by_placeholder("Search").fill("deadline_unattainable")
        page.locator(".md-search-result__link").first.click()
        page.wait_for_url(f"{url}0.2/**/*?h=*")

        assert [each for each in asked if not each.startswith((f"{url}0.2/", "data:", "blob:"))] == []
