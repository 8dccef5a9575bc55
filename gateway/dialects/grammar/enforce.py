"""Finds what llguidance cannot enforce in a schema, and drops the branches of unions that contain it.

The remaining branches of an `anyOf` allow only what the whole union does. None is dropped below a `oneOf`, which needs
all branches to decide whether exactly one matches."""

import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fairlane.gateway.dialects.grammar.schema_tree import (
    DEFINITIONS,
    NAMED,
    ONE,
    SEVERAL,
    Schema,
    Steps,
    places,
    pointed,
    referred,
    subschemas,
)
from fairlane.gateway.dialects.grammar.simplify import is_never

# Returns why a schema cannot be enforced; empty if it can.
FaultOf = Callable[[Schema], str]
_UNSATISFIABLE = "Unsatisfiable schema"
_NULLS: tuple[object, ...] = ({"type": "null"}, {"const": None}, {"enum": [None]})


class Fault(NamedTuple):
    """The reason why a schema is refused, and the path of the keyword that causes it."""

    reason: str
    path: Steps = ()


def enforceable(schema: Schema, fault_of: FaultOf) -> tuple[Schema, Fault | None]:
    """Return the schema without branches that cannot be enforced, and its fault if it needs one of them."""
    reason = fault_of(schema)
    if not reason:
        return schema, None
    root: Schema = json.loads(json.dumps(schema, ensure_ascii=False))
    tree = _Tree(root, fault_of)
    fault = tree.fault()
    if fault is None and tree.drop_branches():
        reason = fault_of(root)
        fault = Fault(reason) if reason else None
    elif fault is None:
        fault = Fault(reason, tree.first_union() if "oneOf" in reason else ())
    return root, fault


class _Tree:
    """A schema's places, and which of them cannot be enforced, by identity."""

    def __init__(self, root: Schema, fault_of: FaultOf) -> None:
        self._root = root
        self._places = places(root)
        self._faults = self._local_faults(fault_of)
        # For each place that needs one that cannot be enforced, the latter.
        self._causes: dict[int, int] = {}
        self._spread()

    def fault(self) -> Fault | None:
        """Return the fault of the whole schema."""
        at = id(self._root)
        while at in self._causes:
            at = self._causes[at]
        return self._faults.get(at)

    def drop_branches(self) -> bool:
        """Drop branches that cannot be enforced. Return whether there were any."""
        for place in self._places:
            if isinstance(place.schema.get("anyOf"), list):
                place.schema["anyOf"] = [each for each in place.schema["anyOf"] if not self._is_bad(each)]
        return bool(self._faults)

    def first_union(self) -> Steps:
        return next(((*place.path, "oneOf") for place in self._places if "oneOf" in place.schema), ())

    def _local_faults(self, fault_of: FaultOf) -> dict[int, Fault]:
        known: dict[str, tuple[str, str]] = {}
        found = {}
        for place in self._places:
            alone = _alone(place.schema, self._root)
            text = json.dumps(alone, ensure_ascii=False)
            if text not in known:
                known[text] = _fault_alone(alone, fault_of)
            reason, keyword = known[text]
            if reason:
                found[id(place.schema)] = Fault(reason, (*place.path, *([keyword] if keyword else ())))
        return found

    def _spread(self) -> None:
        parents: dict[int, list[tuple[Schema, bool]]] = {}
        whole = self._below_one_of()
        for place in self._places:
            for each, is_branch in self._needs(place.schema):
                parents.setdefault(id(each), []).append((place.schema, is_branch and id(place.schema) not in whole))
        # Branches other than null that can be enforced.
        spare = {id(place.schema): self._spare_branches(place.schema) for place in self._places}
        waiting = deque(self._faults)
        while waiting:
            at = waiting.popleft()
            for schema, is_branch in parents.get(at, ()):
                spare[id(schema)] -= is_branch and at in self._causes
                if not self._is_bad(schema) and not (is_branch and spare[id(schema)]):
                    self._causes[id(schema)] = at
                    waiting.append(id(schema))

    def _below_one_of(self) -> set[int]:
        if '"$ref"' in (text := json.dumps(self._root)) and "/anyOf/" in text:  # dropping would break a reference
            return {id(place.schema) for place in self._places}
        found = {id(place.schema): place.schema for place in self._places if "oneOf" in place.schema}
        waiting = [*found.values()]
        while waiting:
            for each, _ in self._needs(waiting.pop()):
                if isinstance(each, dict) and id(each) not in found:
                    found[id(each)] = each
                    waiting.append(each)
        return set(found)

    def _needs(self, schema: Schema) -> Iterator[tuple[Any, bool]]:
        for steps, each in subschemas(schema):
            yield each, steps[0] == "anyOf"
        target = referred(self._root, schema)
        if target is not None:
            yield target, False

    def _is_bad(self, schema: object) -> bool:
        return id(schema) in self._faults or id(schema) in self._causes

    def _spare_branches(self, schema: Schema) -> int:
        branches = schema["anyOf"] if isinstance(schema.get("anyOf"), list) else ()
        return sum(not (id(each) in self._faults or is_never(each) or each in _NULLS) for each in branches)


def _alone(schema: Schema, root: Schema) -> Schema:
    """Return a schema with subschemas that allow everything, and without its reference if that has a target."""
    alone: Schema = {}
    for name, value in schema.items():
        if name in SEVERAL and isinstance(value, list):
            alone[name] = [True] * len(value)
        elif name in ONE and isinstance(value, dict):
            alone[name] = True
        elif name in NAMED and isinstance(value, dict):
            alone[name] = dict.fromkeys(value, True)
        elif name not in DEFINITIONS:
            alone[name] = value
    alone.pop("oneOf", None)
    reference = schema.get("$ref")
    if isinstance(reference, str) and (pointed(root, reference) is not None or re.match("#[^/]", reference)):
        del alone["$ref"]
    return alone


def _fault_alone(schema: Schema, fault_of: FaultOf) -> tuple[str, str]:
    """Return why a schema without its subschemas cannot be enforced, and by which keyword."""
    reason = fault_of(schema)
    if not reason or reason.startswith(_UNSATISFIABLE):
        return "", ""
    stated = {"type": schema["type"]} if "type" in schema else {}
    for name, value in schema.items():
        reason_alone = fault_of({**stated, name: value})
        if reason_alone and not reason_alone.startswith(_UNSATISFIABLE):
            return reason_alone, name
    return reason, ""
