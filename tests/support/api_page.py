"""Writes docs/api.md from the gateway's OpenAPI document and its table of errors: `python -m tests.support.api_page`.

`tests/test_docs.py` compares the two, so the page says what the gateway serves.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairlane.gateway.errors import TABLE, Retry
from fairlane.gateway.openapi.document import document

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
Json = Mapping[str, Any]

EVERYWHERE = "x-request-id"
"""Every call takes it, which the page says once."""
SECTIONS = (
    (
        "Tenant API",
        "tenant",
        "/",
        "With a tenant's key, as OpenAI's SDKs send it: `Authorization: Bearer fl-…`,"
        " or as Anthropic's do: `x-api-key: fl-…`.",
    ),
    (
        "Admin API",
        "admin",
        "/admin/v1/",
        "With the admin key or an operators' token; in brackets the [role](security.md#operators-and-their-roles) that"
        " a call takes, where that is not `viewer`. The audit log names every change. Lists are read page by page: send"
        " `last_id` as `after`"
        " while `has_more` is true.",
    ),
    (
        "Metrics",
        "admin",
        "/metrics",
        "With the admin key or a token on the tenants' port; [ports](security.md#what-is-on-which-port).",
    ),
    ("Health and the rest", "anyone", "/", "Without a key."),
)
RETRIES = {
    Retry.NEVER: "no: `x-should-retry: false`",
    Retry.LATER: "after `retry-after`",
    Retry.HOPELESS: "after `retry-after`, which may be hours: `x-should-retry: false`",
    Retry.IF_KNOWN: "after `retry-after` where a later start helps, else no",
    Retry.UNSAID: "as the client sees fit",
}
HEAD = """# API

<!-- Made by `make docs` from the gateway's OpenAPI document. -->

The gateway serves this as an OpenAPI 3.1 document at `GET /openapi.json`. What lanes, deadlines and progress mean is in
[lanes and deadlines](lanes-and-deadlines.md); what limits and keys mean, in
[tenants and budgets](tenants-and-budgets.md). Every call takes the header `x-request-id`, the caller's own name for it:
it is echoed and traced where it is well-formed, and used for nothing else.
"""


def page() -> str:
    """The whole page."""
    whole = document()
    operations = [
        {"path": path, "method": method.upper(), **operation}
        for path, item in whole["paths"].items()
        for method, operation in item.items()
    ]
    parts = [HEAD]
    for title, who, prefix, said in SECTIONS:
        chosen = [each for each in operations if each["tags"] == [who] and each["path"].startswith(prefix)]
        operations = [each for each in operations if each not in chosen]
        parts += [f"## {title}\n\n{said}\n", *_section(chosen)]
    assert not operations, operations
    parts += ["## Errors\n", *_errors(), "## Headers of answers\n", _table(("header", "type", "what"), _headers(whole))]
    parts.append("## Shapes\n")
    parts += [_shape(name, schema) for name, schema in sorted(whole["components"]["schemas"].items())]
    return "\n".join(parts)


def _role(operation: Mapping[str, Any]) -> str:
    """The role that a call takes, where it is more than the least."""
    found = re.search(r"role `(\w+)`", operation.get("description", ""))
    return f" ({found[1]})" if found and found[1] != "viewer" else ""


def _section(operations: Sequence[Json]) -> Iterator[str]:
    """A table of its operations, and one of what they take beside a body and what stands in their paths."""
    rows = [
        (
            f"`{each['method']} {each['path']}`",
            each["summary"] + _role(each),
            _taken(each),
            _body(each),
            _answer(each),
            _refusals(each),
        )
        for each in operations
    ]
    yield _table(("call", "what", "parameters", "body", "answer", "refusals"), rows)
    fields = dict.fromkeys(
        (f"`{field['name']}`", field["in"], _type(field["schema"]), field.get("description", ""))
        for each in operations
        for field in _parameters(each)
    )
    if fields:
        yield _table(("parameter", "in", "type", "what"), fields)


def _parameters(operation: Json) -> list[Json]:
    return [each for each in operation["parameters"] if each["in"] != "path" and each["name"] != EVERYWHERE]


def _taken(operation: Json) -> str:
    return ", ".join(f"`{each['name']}`" for each in _parameters(operation))


def _body(operation: Json) -> str:
    body = operation.get("requestBody")
    return _content(body["content"]) if body else ""


def _answer(operation: Json) -> str:
    done = ((status, told) for status, told in operation["responses"].items() if status.startswith("2"))
    return "".join(f"{status} {_content(answer['content'])}" for status, answer in done)


def _content(content: Json) -> str:
    return ", ".join(
        _type(told["schema"]) if "$ref" in str(told["schema"]) and kind == "application/json" else f"`{kind}`"
        for kind, told in content.items()
    )


def _refusals(operation: Json) -> str:
    return ", ".join(f"{status}" for status in operation["responses"] if not status.startswith("2"))


def _errors() -> Iterator[str]:
    yield "An error is an [Error](#error). Its `code` says what to do:\n"
    rows = sorted((rule.status, code, rule.type, RETRIES[rule.retry]) for code, rule in TABLE.items())
    yield _table(("HTTP", "`code`", "`type`", "send again?"), ((str(s), f"`{c}`", f"`{t}`", r) for s, c, t, r in rows))


def _headers(whole: Json) -> Iterator[tuple[str, ...]]:
    for name, header in whole["components"]["headers"].items():
        yield f"`{name}`", _type(header["schema"]), header["description"]


def _shape(name: str, schema: Json) -> str:
    """One schema, with a row for each of its fields."""
    title = f"### {name}\n\n{schema['description']}\n"
    required = schema.get("required", [])
    rows = [
        (f"`{field}`", _type(told), "yes" if field in required else "", told.get("description", ""))
        for field, told in schema.get("properties", {}).items()
    ]
    return f"{title}\n{_table(('field', 'type', 'required', 'what'), rows)}" if rows else title


def _type(schema: Json) -> str:
    """A JSON schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(_type(each) for each in schema[several])
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{_json(value)}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}{_bounds(schema, 'minItems', 'maxItems')}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_type(schema['additionalProperties'])}"
    bounds = _bounds(schema, "minimum", "maximum") or _bounds(schema, "minLength", "maxLength", " characters")
    above = f", above {_figure(schema['exclusiveMinimum'])}" if "exclusiveMinimum" in schema else ""
    return f"{kind}{above}{bounds}"


def _bounds(schema: Json, least: str, most: str, unit: str = "") -> str:
    low, high = _figure(schema.get(least)), _figure(schema.get(most))
    if low is None and high is None:
        return ""
    if high is None:
        return f", at least {low}{unit}"
    return f", {low} to {high}{unit}" if low is not None else f", at most {high}{unit}"


def _figure(value: float | None) -> str | None:
    return None if value is None else f"{int(value) if value == int(value) else value:,}"


def _json(value: object) -> str:
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case str():
            return value
        case _:
            return str(value).replace("'", '"')


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table without the columns that would be empty."""
    cells = [[re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in row] for row in rows]
    kept = [place for place in range(len(head)) if any(row[place] for row in cells)]
    lines = [[head[place] for place in kept], ["---"] * len(kept), *([row[place] for place in kept] for row in cells)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page())
