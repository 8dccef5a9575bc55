"""Command-line help of settings, read from the settings classes: description, kind of value, default, variable.

The description of a setting is the string below its field."""

import argparse
import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin

import msgspec

from fairlane.scheduler.protocol.settings import DEFAULT_CONFIG, PREFIX, ByteSize, SharedSettings

_UNITS = {"_s": "SECONDS", "_ms": "MILLISECONDS"}
_WORDS = {
    msgspec.inspect.IntType: "INTEGER",
    msgspec.inspect.FloatType: "NUMBER",
    msgspec.inspect.BoolType: "BOOLEAN",
    msgspec.inspect.StrType: "TEXT",
}


@dataclass(frozen=True, slots=True)
class SettingHelp:
    """One setting, as help shows it."""

    # Dotted path in the settings: `worker.engine_url`.
    name: str
    # The command-line option, named after the last part: `--engine-url`.
    flag: str
    value: str
    # None: no default value; the description says what happens then.
    default: str | None
    description: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper().replace(".", "__")


def described(kind: type[SharedSettings], names: Sequence[str]) -> list[SettingHelp]:
    """Return the help of some settings of a process, each named by its dotted path."""
    return [_described(kind, name) for name in names]


def _described(kind: type[msgspec.Struct], path: str) -> SettingHelp:
    section: Any = kind
    *above, last = path.split(".")
    for name in above:
        section = type(_field(section, name).default)
    field = _field(section, last)
    default = None if field.default is None else str(field.default)
    flag = f"--{last.replace('_', '-')}"
    return SettingHelp(path, flag, _value(field), default, descriptions(section).get(last, ""))


def _field(section: type[msgspec.Struct], name: str) -> msgspec.structs.FieldInfo:
    return next(field for field in msgspec.structs.fields(section) if field.name == name)


def process_parser(prog: str, description: str, helps: Iterable[SettingHelp]) -> argparse.ArgumentParser:
    """Return a process's parser: `--config`, `--check-config` and a flag for each setting; `load` checks the values."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--config", metavar="FILE", help=f"Settings file. [default: {DEFAULT_CONFIG}, if there is one]")
    parser.add_argument("--check-config", action="store_true", help="Check the settings and exit.")
    for each in helps:
        default = "" if each.default is None else f" [default: {each.default}]"
        text = f"{each.description} Overrides {each.variable}.{default}".replace("%", "%%")
        parser.add_argument(each.flag, dest=each.name, metavar=each.value, help=text)
    return parser


@cache
def descriptions(section: type[msgspec.Struct]) -> dict[str, str]:
    """Return the description of each documented field of a settings class, by name."""
    found: dict[str, str] = {}
    for each in reversed(section.__mro__):
        if each is not msgspec.Struct and issubclass(each, msgspec.Struct):
            found |= _below_fields(each)
    return found


def _below_fields(section: type) -> Iterator[tuple[str, str]]:
    try:
        source = inspect.getsource(section)
    except OSError:  # installed without sources
        return
    (parsed,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(parsed, ast.ClassDef)  # noqa: S101 - the source of a class
    for field, text in zip(parsed.body, parsed.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(description))):
                yield name, " ".join(description.split())


def _value(field: msgspec.structs.FieldInfo) -> str:
    if get_origin(field.type) is Literal:  # msgspec would sort the choices
        return "|".join(map(str, get_args(field.type)))
    taken = msgspec.inspect.type_info(field.type)
    options = taken.types if isinstance(taken, msgspec.inspect.UnionType) else (taken,)
    words = [_word(field.name, each) for each in options if not isinstance(each, msgspec.inspect.NoneType)]
    return "|".join(words)


def _word(name: str, taken: msgspec.inspect.Type) -> str:
    match taken:
        case msgspec.inspect.IntType(ge=least, le=most) if least is not None and most is not None:
            return f"{least}..{most}"
        case msgspec.inspect.CustomType(cls=cls) if cls is ByteSize:
            return "SIZE"
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), _WORDS[type(taken)])
    return _WORDS.get(type(taken), "VALUE")
