"""Writes the part `config` of helm/values.schema.json from the settings' types: `python -m tests.support.chart_schema`.

`tests/chart/test_config_schema.py` compares the two, so a wrong setting fails the render and not the pod.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import inspect

from fairlane.gateway.config import GatewaySettings
from fairlane.scheduler.protocol.settings import ByteSize, Hosts, Names, Networks, Origins
from fairlane.worker.config import WorkerSection
from tests.support.chart import CHART

FILE = CHART / "values.schema.json"
Schema = dict[str, Any]

OWNED_BY_CHART = ("admin_key", "data_dir", "quota_redis_url", "redis_url")
"""Taken by the schema, so that `templates/requirements.yaml` can refuse them with a sentence that says what to do."""
SIZE = {"type": ["string", "integer"], "pattern": "^ *[0-9]+([.][0-9]+)? *([kKmMgGtT]i?[bB]?|[bB])? *$", "minimum": 0}
CUSTOM: Mapping[type, Schema] = {
    ByteSize: SIZE,
    Networks: {"type": ["array", "string"], "items": {"type": "string"}},
    Origins: {"type": ["array", "string"], "items": {"type": "string"}},
    Hosts: {"type": ["array", "string"], "items": {"type": "string"}},
    Names: {"type": ["array", "string"], "items": {"type": "string"}},
}
PLAIN: Mapping[type[inspect.Type], Schema] = {
    inspect.AnyType: {},
    inspect.NoneType: {"type": "null"},
    inspect.BoolType: {"type": "boolean"},
}
OPEN_PORT = {"type": "integer", "minimum": 1024, "maximum": 65535}
"""Which a process that is not root may listen on."""
NARROWER: Mapping[tuple[str, ...], Schema] = {
    ("port",): OPEN_PORT,
    ("metrics_port",): OPEN_PORT,
    ("worker", "metrics_port"): OPEN_PORT,
    ("model",): {"type": "string", "minLength": 1},
    ("gateway", "files", "url"): {"type": "string", "pattern": "^([a-z][a-z0-9+.-]*://.+)?$"},
    ("worker", "device"): {"type": "string", "pattern": "^(auto|cpu|cuda(:[0-9]+)?)$"},
}
"""What the chart needs beyond a setting's type."""
NEEDED: Mapping[tuple[str, ...], list[str]] = {
    (): ["host", "port", "metrics_port", "admin_port", "gateway", "worker"],
    ("gateway",): ["grace_s", "processes"],
    ("worker",): ["drain_s", "metrics_port"],
}
"""Settings by which templates compute."""


def config_schema() -> Schema:
    """All that `config` may hold: the gateway's settings and the worker's, but for what the chart owns."""
    schema = _struct(inspect.type_info(GatewaySettings), ())
    schema["properties"]["worker"] = worker_schema()
    for name in OWNED_BY_CHART:
        schema["properties"][name] = {}
    return schema


def worker_schema() -> Schema:
    """The worker's section."""
    schema = _struct(inspect.type_info(WorkerSection), ("worker",))
    schema["properties"]["engine_key"] = {}
    return schema


def group_schema() -> Schema:
    """What a group of workers may change of that section."""
    schema = worker_schema()
    del schema["required"]
    return schema


def _struct(kind: inspect.Type, path: tuple[str, ...]) -> Schema:
    assert isinstance(kind, inspect.StructType)
    properties = {
        field.encode_name: NARROWER.get((*path, field.encode_name)) or _schema(field.type, (*path, field.encode_name))
        for field in kind.fields
    }
    required = NEEDED.get(path) or [field.encode_name for field in kind.fields if field.required]
    schema = {"type": "object", "additionalProperties": False, "properties": dict(sorted(properties.items()))}
    return schema | ({"required": required} if required else {})


def _schema(kind: inspect.Type, path: tuple[str, ...]) -> Schema:
    """Of one setting; `path` is where it stands. Raises TypeError for a type that has no schema yet."""
    match kind:
        case inspect.StructType():
            return _struct(kind, path)
        case inspect.UnionType():
            return _union([_schema(each, path) for each in kind.types])
        case inspect.Metadata():
            return _schema(kind.type, path)
        case inspect.AnyType() | inspect.NoneType() | inspect.BoolType():
            return dict(PLAIN[type(kind)])
        case inspect.IntType() | inspect.FloatType():
            return {"type": "integer" if isinstance(kind, inspect.IntType) else "number"} | _bounds(kind)
        case inspect.StrType():
            limits = {"minLength": kind.min_length, "maxLength": kind.max_length, "pattern": kind.pattern}
            return {"type": "string"} | _given(limits)
        case inspect.EnumType():
            return {"enum": [each.value for each in kind.cls]}
        case inspect.LiteralType():
            return {"enum": list(kind.values)}
        case inspect.CustomType() if kind.cls in CUSTOM:
            return dict(CUSTOM[kind.cls])
        case inspect.DictType():
            limits = {"minProperties": kind.min_length, "maxProperties": kind.max_length}
            return {"type": "object", "additionalProperties": _schema(kind.value_type, path)} | _given(limits)
        case inspect.ListType() | inspect.VarTupleType():
            limits = {"minItems": kind.min_length, "maxItems": kind.max_length}
            return {"type": "array", "items": _schema(kind.item_type, path)} | _given(limits)
    raise TypeError(f"config.{'.'.join(path)}: say in {__name__} what the schema of {kind} is")


def _union(kinds: list[Schema]) -> Schema:
    """Kept flat where all but one are null, which messages then say plainly."""
    others = [each for each in kinds if each != {"type": "null"}]
    if len(others) == 1 and len(kinds) == 2 and "type" in others[0]:
        own = others[0]["type"]
        return {**others[0], "type": [*([own] if isinstance(own, str) else own), "null"]}
    return {"anyOf": kinds}


def _bounds(kind: inspect.IntType | inspect.FloatType) -> Schema:
    limits = {"minimum": kind.ge, "maximum": kind.le, "exclusiveMinimum": kind.gt, "exclusiveMaximum": kind.lt}
    # Python keeps one of two equal annotations: whether a bound is 1000 or 1000.0 depends on what was imported first.
    return {name: int(limit) if limit == int(limit) else limit for name, limit in _given(limits).items()}


def _given(limits: Mapping[str, object]) -> Schema:
    return {name: limit for name, limit in limits.items() if limit is not None}


def with_config(schema: Schema) -> Schema:
    """The chart's schema with the settings' part made anew."""
    fresh: Schema = msgspec.json.decode(msgspec.json.encode(schema))
    fresh["properties"]["config"] = config_schema()
    fresh["definitions"]["workerConfig"] = group_schema()
    return fresh


def text(schema: Schema) -> str:
    """As the file has it."""
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(with_config(json.loads(FILE.read_text()))))
