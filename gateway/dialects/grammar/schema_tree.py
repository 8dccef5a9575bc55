"""Walks a JSON schema: its subschemas, and the references between them.

No step recurses, and time is linear in the schema. A subschema with its own `$id` is not entered by default, because
references in it resolve differently."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional
from urllib.parse import quote, unquote

# Keywords whose values are a schema, a list of schemas, and an object of schemas.
ONE = (
    *("items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties", "unevaluatedProperties"),
    *("propertyNames", "not", "if", "then", "else"),
)
SEVERAL = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
NAMED = ("properties", "patternProperties", "dependentSchemas", "dependencies")
DEFINITIONS = ("$defs", "definitions")
Step = str | int
Steps = tuple[Step, ...]
Schema = dict[str, Any]


class Place(NamedTuple):
    """A schema object within a schema, with its path relative to another place."""

    schema: Schema
    within: Optional["Place"] = None
    steps: Steps = ()

    @property
    def path(self) -> Steps:
        place, found = self, [self.steps]
        while place.within is not None:
            place = place.within
            found.append(place.steps)
        return tuple(step for steps in reversed(found) for step in steps)


def subschemas(schema: Mapping[str, Any], named: Sequence[str] = NAMED) -> Iterator[tuple[Steps, Any]]:
    """Yield the direct subschemas with their paths. A definition or the target of a reference is not one."""
    for name in ONE:
        if name in schema and not isinstance(schema[name], list):
            yield (name,), schema[name]
    for name in SEVERAL:
        if isinstance(schema.get(name), list):
            yield from (((name, index), each) for index, each in enumerate(schema[name]))
    for name in named:
        if isinstance(schema.get(name), dict):
            yield from (((name, key), each) for key, each in schema[name].items())


def spelled(original: object, path: Steps) -> Steps:
    """Return the path in the original schema of a path in its rewritten form."""
    found: list[Step] = []
    for step in path:
        if isinstance(original, list) and isinstance(step, int) and step < len(original):
            original = original[step]
        elif isinstance(original, dict):
            step = "oneOf" if step == "anyOf" and step not in original else step
            if step not in original:  # a rewrite added it
                continue
            original = original[step]
        found.append(step)
    return tuple(found)


def places(root: Schema, *, enters_bases: bool = False) -> list[Place]:
    """Return each schema object that `root` applies, once, with those that contain it before it."""
    found = [Place(root)]
    seen = {id(root)}
    for place in found:  # it grows meanwhile
        inner = [Place(each, place, steps) for steps, each in subschemas(place.schema)]
        target = referred(root, place.schema)
        if target is not None:
            inner.append(Place(target, None, tuple(pointer_steps(place.schema["$ref"]))))
        for each in inner:
            if not isinstance(each.schema, dict) or (is_base(each.schema) and not enters_bases):
                continue
            if id(each.schema) not in seen:
                seen.add(id(each.schema))
                found.append(each)
    return found


def is_base(schema: Mapping[str, object]) -> bool:
    """Return whether references in it may be relative to itself."""
    return isinstance(schema.get("$id"), str) or isinstance(schema.get("id"), str)


def referred(root: Schema, schema: Mapping[str, Any]) -> Schema | None:
    """Return the target of a schema's `$ref`; None without one within `root`."""
    reference = schema.get("$ref")
    target = pointed(root, reference) if isinstance(reference, str) else None
    return target if isinstance(target, dict) else None


def pointer_steps(reference: str) -> list[str]:
    """Return the path that a reference spells."""
    steps = unquote(reference.removeprefix("#")).split("/")[1:]
    return [step.replace("~1", "/").replace("~0", "~") for step in steps]


def pointer(path: Steps) -> str:
    """Return the reference to a path."""
    return "#" + "".join(f"/{quote(str(step).replace('~', '~0').replace('/', '~1'), safe='~')}" for step in path)


def pointed(root: Schema, reference: str) -> object:
    """Return the target of a reference; None without one within `root`."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    found: object = root
    for step in pointer_steps(reference):
        if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        elif isinstance(found, dict) and (found is root or not is_base(found)):
            found = found.get(step)
        else:
            return None
    return found
