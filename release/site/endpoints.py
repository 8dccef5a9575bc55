"""The API pages of the site: each call with its purpose, an example in curl and Python, its fields and its errors."""

import re
from collections.abc import Iterator, Mapping, Sequence
from textwrap import indent

from fairlane.gateway.control.openapi.document import document
from fairlane.gateway.errors import TABLE, Code
from release.site.examples import curl, python
from release.site.shapes import Json, Row, bodies, link, listed, references, shapes, type_of

GROUPS = (
    ("batches", "Files and batches", "/v1/files|/v1/batches|/v1/messages/batches"),
    ("messages", "Messages", "/v1/messages"),
    ("chat", "Chat and completions", "/v1/chat/|/v1/completions"),
    ("responses", "Responses", "/v1/responses"),
    ("conversations", "Conversations", "/v1/conversations"),
    ("embeddings", "Embeddings, scores and rankings", r"/v1/embeddings|/pooling|(/v1)?/score|(/v\d)?/rerank"),
    ("models", "Models and tokens", "/v1/models|/tokenize|/detokenize"),
    ("account", "Own limits and requests", "/v1/"),
    ("money", "Usage and prices", "/admin/v1/(tenants/{tenant}/(usage|ledger)|prices|chargeback)"),
    ("tenants", "Tenants, keys and limits", "/admin/v1/tenants"),
    ("simulations", "Traces and simulations", "/admin/v1/(traces|simulations)"),
    ("operators", "Operators and audit log", "/admin/v1/(me|tokens|audit)"),
    ("fleet", "Fleet, lanes and requests", "/admin/v1/"),
    ("health", "Health, metrics and documents", "/"),
)
"""Each page's name, its title, and how its paths begin. A call is on the first page that fits."""
EVERYWHERE = "x-request-id"
"""A parameter of every call, which docs/api.md explains."""
_ANSWERS = """---
search:
  boost: 0.5
---

# Answers

The fields of answers and of the events of streams. Times that end in `_at` are Unix seconds.
"""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page."""
    whole = document()
    schemas, known = whole["components"]["schemas"], {*bodies(whole)}
    operations = [
        {"path": path, "method": method.upper(), **operation}
        for path, item in whole["paths"].items()
        for method, operation in item.items()
    ]
    for name, title, _ in GROUPS:
        chosen = [each for each in operations if page_of(each["path"]) == name]
        yield f"{name}.md", _with_links("\n".join([f"# {title}\n", *_page(chosen, operations)]), known, "answers.md")
    sections = shapes([name for name in schemas if name not in known], schemas, plain_words=-1)
    text = re.sub("^###", "##", "\n".join([_ANSWERS, *sections]), flags=re.MULTILINE)
    yield "answers.md", _with_links(text, known, "")


def page_of(path: str) -> str:
    """Return the name of a call's page."""
    return next(name for name, _, pattern in GROUPS if re.match(pattern, path))


def _with_links(text: str, known: set[str], answers: str) -> str:
    """Lead the links to schemas to the pages that have them: bodies are in docs/api.md."""
    pages = {name.lower(): "../api.md" for name in known}
    return re.sub(r"\]\(#(\w+)\)", lambda found: f"]({pages.get(found[1], answers)}#{found[1]})", text)


def _page(chosen: Sequence[Json], operations: Sequence[Json]) -> Iterator[str]:
    """One page: what its calls share, and a section for each."""
    for who in dict.fromkeys(each["tags"][0] for each in chosen):
        alike = [each for each in operations if each["tags"] == [who]]
        shared = set.intersection(*(_codes(each) for each in alike))
        plane = {"tenant": "tenant-api", "admin": "admin-api", "anyone": "health-and-documentation"}[who]
        yield f"Keys, and what such calls share: [API](../api.md#{plane}).\n"
        yield f"Each may be refused with {_errors(shared)}.\n"
        for each in (each for each in chosen if each["tags"] == [who]):
            yield from _section(each, shared)


def _section(operation: Json, shared: set[Code]) -> Iterator[str]:
    yield f"## `{operation['method']} {operation['path']}`\n"
    yield f"{operation['summary']}. {operation.get('description', '')}".rstrip() + "\n"
    if "101" in operation["responses"]:
        yield "Its messages: [WebSockets of responses](../clients.md#websockets-of-responses).\n"
    else:
        yield _tab("curl", "sh", curl(operation))
        yield _tab("Python", "python", python(operation))
    if body := operation.get("requestBody"):
        yield f"**Body**: {_content(body['content'])}\n"
    yield "**Answer**: " + "; ".join(
        f"{status} {_content(answer['content'])}".rstrip()
        for status, answer in operation["responses"].items()
        if status < "300"
    )
    yield ""
    if parameters := list(_parameters(operation)):
        yield f"**Parameters**\n\n{listed(parameters)}"
    if own := _codes(operation) - shared:
        yield f"**Errors**: {_errors(own)}\n"


def _tab(title: str, language: str, text: str) -> str:
    fenced = f"```{language}\n{text}\n```\n"
    return f'=== "{title}"\n\n{indent(fenced, "    ")}'


def _content(content: Json) -> str:
    """Each media type with links to its schemas."""
    parts = []
    for kind, media in content.items():
        schemas = ", ".join(link(name) for name in dict.fromkeys(references(media)))
        parts.append(schemas if kind == "application/json" and schemas else f"`{kind}` {schemas}".rstrip())
    return "; or ".join(parts)


def _parameters(operation: Json) -> Iterator[Row]:
    for each in operation["parameters"]:
        if each["name"] != EVERYWHERE:
            kind = type_of(each["schema"])
            yield each["name"], f"{each['in']}, {kind}", each.get("description", "")


def _codes(operation: Mapping[str, object]) -> set[Code]:
    """Return the codes of a call's errors, which the document has as descriptions."""
    responses: Json = operation["responses"]  # type: ignore[assignment]
    named = {code for each in responses.values() for code in each["description"].split(" | ")}
    return {code for code in TABLE if code in named}


def _errors(codes: set[Code]) -> str:
    """Return codes by status, with links to what to do."""
    rows: dict[int, list[str]] = {}
    for code in sorted(codes):
        rows.setdefault(TABLE[code].status, []).append(f"[`{code}`](../errors.md#{TABLE[code].status})")
    return "; ".join(f"{status} {', '.join(found)}" for status, found in sorted(rows.items()))
