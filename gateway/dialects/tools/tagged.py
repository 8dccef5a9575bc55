"""Arguments written as tags, as by Qwen 3.5:

    <parameter=city>
    Köln
    </parameter>

Their values are text, converted by the types of the tool's schema."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fairlane.gateway.dialects.grammar.schema_tree import referred
from fairlane.gateway.http.json_reader import read_text

OPEN, CLOSE = "<parameter=", "</parameter>"
_TRUTH = {"true": True, "True": True, "1": True, "false": False, "False": False, "0": False}
_CLASSES: dict[str, tuple[type, ...]] = {"number": (int, float), "object": (dict,), "array": (list,)}
_KNOWN = frozenset({"string", "boolean", "null", "integer", *_CLASSES})
# Members of a union of types to look at.
_SCHEMA_PARTS = 100


def arguments(body: str, schema: Mapping[str, Any]) -> str:
    """Return the JSON text of the arguments in a call's body. `schema`: of the called function's parameters."""
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    cast = {key: _cast(value, _types(known.get(key), schema)) for key, value in _tags(body)}
    return json.dumps(cast, ensure_ascii=False)


def _tags(body: str) -> Iterator[tuple[str, str]]:
    at = body.find(OPEN)
    while at >= 0:
        name_end = body.find(">", at)
        if name_end < 0:
            return
        value_end = body.find(CLOSE, name_end)
        value_end = len(body) if value_end < 0 else value_end
        value = body[name_end + 1 : value_end]
        yield body[at + len(OPEN) : name_end].strip(), value.removeprefix("\n").removesuffix("\n")
        at = body.find(OPEN, value_end)


def _types(schema: object, root: Mapping[str, Any]) -> list[str]:
    """Return the types that a schema allows, in its order and without repetition: a value is tried as each of them.

    `root`: the schema of all arguments, in which references are looked up."""
    found: list[str] = []
    waiting: list[object] = [schema]
    for _ in range(_SCHEMA_PARTS):
        if not waiting:
            break
        part = waiting.pop(0)
        if isinstance(part, dict):
            stated = part.get("type")
            named = [stated] if isinstance(stated, str) else _listed(stated)
            values = _listed(part.get("enum"))[:1] + ([part["const"]] if "const" in part else [])
            found += [kind for kind in named if isinstance(kind, str)] or map(_type_of, values)
            parts = [inner for union in ("anyOf", "oneOf", "allOf") for inner in _listed(part.get(union))]
            waiting += [referred(dict(root), part), *parts][:_SCHEMA_PARTS]
    return [kind for kind in dict.fromkeys(found) if kind in _KNOWN]


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _type_of(value: object) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null", list: "array"}
    return kinds.get(type(value), "object")


def _cast(text: str, types: list[str]) -> object:
    for kind in types:
        if kind == "string":
            return text
        word = text.strip()
        if kind == "boolean" and word in _TRUTH:
            return _TRUTH[word]
        if kind == "null" and word in ("null", "None"):
            return None
        try:
            value = read_text(word)
        except ValueError:
            continue
        if _is(value, kind):
            return int(value) if kind == "integer" and isinstance(value, int | float) else value
    return text


def _is(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return False
    if kind == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return isinstance(value, _CLASSES.get(kind, ()))
