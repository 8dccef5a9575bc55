"""JSON schemas as Markdown: the fields of bodies and answers in lists and tables.

`tests.support.api_page` writes docs/api.md with it, and `release.site.endpoints` the API pages of the site."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]
Row = tuple[str, str, str]
"""A field: its name, its type (with `required` where it is), and what it means."""
SHARED_FIELDS = 4
"""A body that has this many fields of an earlier one refers to it instead of repeating them."""


def bodies(whole: Json) -> list[str]:
    """Return the names of the schemas that a request body can hold, each before those that it refers to."""
    found = dict.fromkeys(
        name
        for item in whole["paths"].values()
        for operation in item.values()
        for name in references(operation.get("requestBody", {}))
    )
    waiting = list(found)
    while waiting:
        for name in references(whole["components"]["schemas"][waiting.pop(0)]):
            if name not in found:
                found[name] = None
                waiting.append(name)
    return list(found)


def references(part: object) -> Iterator[str]:
    """Names of the schemas that a part of the document refers to."""
    if isinstance(part, Mapping):
        if "/schemas/" in str(part.get("$ref")):
            yield part["$ref"].rpartition("/")[2]
        for each in part.values():
            yield from references(each)
    elif isinstance(part, list):
        for each in part:
            yield from references(each)


def shapes(names: Iterable[str], schemas: Json, plain_words: int) -> Iterator[str]:
    """A section for each schema. One that has most fields of an earlier one refers to it instead of repeating them."""
    earlier: dict[str, list[Row]] = {}
    for name in names:
        rows = rows_of(schemas[name], plain_words)
        base = max(earlier, key=lambda other: len({*rows} & {*earlier[other]}), default=None)
        yield f"### {name}\n\n{schemas[name]['description']}\n"
        same = {*rows} & {*earlier[base]} if base else set()
        if base and len(same) >= SHARED_FIELDS:
            others = [row[0] for row in earlier[base] if row not in same]
            if len(others) < len(same):
                exceptions = f" except {in_code(others)}" if others else ""
                which = f"All fields of {link(base)}{exceptions}"
            else:
                which = f"As in {link(base)}: {in_code(row[0] for row in rows if row in same)}"
            yield f"{which}{'; and:' if {*rows} - same else '.'}\n"
        else:
            same = set()
        earlier[name] = rows
        if {*rows} - same:
            yield listed(row for row in rows if row not in same)


def rows_of(schema: Json, plain_words: int) -> list[Row]:
    """The fields of a body, or (with `plain_words`) those of an answer that need an explanation."""
    required = schema.get("required", [])
    rows = []
    for field, part in schema.get("properties", {}).items():
        kind, what = type_of(part), part.get("description", "")
        if not plain_words:
            kind = f"{kind}, required" if field in required else _optional(kind)
        if len(what.split()) > plain_words:
            rows.append((field, kind, what))
    return rows


def _optional(kind: str) -> str:
    """The type of an optional field, whose `null` the page states once."""
    without = kind.removesuffix(" or null")
    return kind if kind == "null" else without if without != kind else f"{kind}, not null"


def in_code(fields: Iterable[str]) -> str:
    """Return names of fields, separated by commas."""
    return ", ".join(f"`{field}`" for field in fields)


def link(name: str) -> str:
    """Return a link to the section of a schema on the same page."""
    return f"[{name}](#{name.lower()})"


def type_of(schema: Json) -> str:
    """A JSON schema in a few words."""
    if "$ref" in schema:
        return link(schema["$ref"].rpartition("/")[2])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_in_brackets(type_of(each)) for each in schema[several]))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{_json(value)}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any")
    if kind == "array":
        item = _in_brackets(re.sub(", (not empty|at least 0)$", "", type_of(schema.get("items", {}))))
        return f"list of {item}{_bounds(schema, 'minItems', 'maxItems', ' items')}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {type_of(schema['additionalProperties'])}"
    bounds = _bounds(schema, "minimum", "maximum") or _bounds(schema, "minLength", "maxLength", " characters")
    above = f", above {_figure(schema['exclusiveMinimum'])}" if "exclusiveMinimum" in schema else ""
    return f"{kind}{above}{bounds}"


def _in_brackets(kind: str) -> str:
    """A type with its bounds in brackets, to be a part of another type."""
    return re.sub(r"^([a-z ]+), (.+)$", r"\1 (\2)", kind)


def _bounds(schema: Json, least: str, most: str, unit: str = "") -> str:
    low, high = _figure(schema.get(least)), _figure(schema.get(most))
    if low is None and high is None:
        return ""
    if high is None:
        return ", not empty" if unit and low == "1" else f", at least {low}{unit}"
    return f", {low} to {high}{unit}" if low is not None else f", at most {high}{unit}"


def _figure(value: float | None) -> str | None:
    return None if value is None else f"{int(value) if value == int(value) else value:,}"


def _json(value: object) -> str:
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case str():
            return value or '""'
        case _:
            return str(value).replace("'", '"')


def listed(rows: Iterable[Row]) -> str:
    """A list of fields. Those that share a description are listed together; a type of all of them is stated once."""
    rows = list(rows)
    kinds = {kind for _, kind, _ in rows}
    shared = kinds.pop() if len(kinds) == 1 and len(rows) >= SHARED_FIELDS else None
    alike: dict[str, list[Row]] = {}
    for row in rows:
        alike.setdefault(" ".join(row[2].split()).removesuffix("."), []).append(row)
    lines = []
    for what, fields in alike.items():
        kinds = {kind for _, kind, _ in fields}
        names = in_code(name for name, _, _ in fields)
        if names == "`type`" and re.fullmatch(r"(`\w+`(, )?)+(required|not null)?", fields[0][1]):
            lines.append(f"`type`: {kinds.pop()}\n")
        elif shared:
            lines.append(f"{names}: {what}\n")
        elif len(kinds) == 1:
            lines.append(f"{names} ({kinds.pop()}): {what}\n")
        else:
            lines.append(f"{what}: {', '.join(f'`{name}` ({kind})' for name, kind, _ in fields)}\n")
    return (f"Type: {shared}.\n\n" if shared else "") + "".join(f"- {line}" for line in lines)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table without the columns that would be empty."""
    cells = [[re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in row] for row in rows]
    kept = [place for place in range(len(head)) if any(row[place] for row in cells)]
    lines = [[head[place] for place in kept], ["---"] * len(kept), *([row[place] for place in kept] for row in cells)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
