"""Reads a body into its fields: each is honoured, ignored as a hint, or refused by name.

A field that a body's class does not declare is a hint, unless the deployment or the tenant refuses unknown fields. Of
the fields in `neutral.py` some are hints too; the others are refused, unless their value asks for nothing."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fairlane.gateway.dialects.media_marks import Media, MediaFound
from fairlane.gateway.dialects.openai.field_types import EMPTY
from fairlane.gateway.dialects.openai.neutral import HintValues, Neutral
from fairlane.gateway.errors import ApiError, invalid
from fairlane.gateway.http.json_reader import MAX_FIELD_NAME, read_object, shown_name
from fairlane.scheduler.protocol.media import MediaKind

# Ignored fields that an answer names.
MAX_IGNORED = 16
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_INDEX = re.compile(r"\.\[\d+\]")
Path = tuple[int | str, ...]
_RULES = {
    "dict_type": "must be an object",
    "extra_forbidden": "is not a field of this API",
    "list_type": "must be a list",
    "missing": "is required",
    "none_required": "is not supported yet",
    "model_type": "must be an object",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must not be empty",
    "too_long": "must have at most {max_length} items",
    "too_short": "must not be empty",
}


_UNREAD = ("is not text; this model reads only text", "is neither text, nor an image or sound that this model reads")
_UNGIVEN = "has neither a URL nor base64 in a form that is read; files by id are not supported"

Body = TypeVar("Body", bound=BaseModel)


@dataclass(slots=True)
class Reading:
    """The rules by which a body is read, and the fields that were ignored in it."""

    # The maximum of token ids in it.
    token_ids: int = 0
    refuses_unknown: bool = False
    # An image in the result of a tool that the model does not read is an error; else it reads that it is omitted.
    refuses_images: bool = False
    ignored: list[str] = field(default_factory=list)
    found: MediaFound = field(default_factory=MediaFound)

    def ignore(self, name: str) -> None:
        """Add a field by its name or path, as a header may hold it."""
        shown = _UNSAFE.sub("?", _INDEX.sub("", name)[:MAX_FIELD_NAME])
        if shown not in self.ignored and len(self.ignored) < MAX_IGNORED:
            self.ignored.append(shown)

    def unread(self, media: Media, kinds: Collection[MediaKind]) -> Sequence[int]:
        """Return the indices of media that the model does not read, and that are omitted. Raises ApiError for those
        that may not be. `kinds`: that it reads."""
        omitted = []
        for index, medium in enumerate(media.given):
            if medium.kind in kinds:
                continue
            if self.refuses_images or not medium.may_omit:
                is_ungiven = medium.source is None and any(kind in medium.type for kind in kinds)
                why = _UNGIVEN if is_ungiven else _UNREAD[bool(kinds)]
                raise invalid(medium.param, f"`{medium.param}` contains a part that {why}.")
            self.ignore(f"{medium.param}.{medium.type}")
            omitted.append(index)
        return omitted


def checked(kind: type[Body], neutral: Neutral, body: bytes, reading: Reading | None = None) -> Body:
    """Validate a body, as `checked_fields` does."""
    token_ids = 0 if reading is None else reading.token_ids
    return checked_fields(kind, neutral, read_object(body, token_ids=token_ids), reading)


def checked_fields(
    kind: type[Body], neutral: Neutral, fields: Mapping[str, object], reading: Reading | None = None
) -> Body:
    """Validate parsed fields. Without a reading, unknown fields are refused. Raises ApiError naming the field.

    `neutral`: fields without an effect at these values."""
    given = dict(fields)
    for name in sorted(neutral.keys() & given):
        _check_neutral(name, given.pop(name), neutral[name], reading)
    try:
        return kind.model_validate(given, context=reading)
    except ValidationError as error:
        is_unknown = any(found["type"] == "extra_forbidden" for found in _errors(error))
        refused = _first(error)  # raised below, so that no chained exception quotes the body
    try:
        if is_unknown and reading is not None:
            return _without_unknown(kind, given, reading)
        raise refused
    finally:
        del refused  # breaks the reference cycle of its traceback, which would keep the fields alive


def _check_neutral(name: str, value: object, known: tuple[object, ...], reading: Reading | None) -> None:
    if value in EMPTY or any(type(value) is type(each) and value == each for each in known):
        return
    if not isinstance(known, HintValues):
        raise invalid(name, f"`{name}` is not supported yet.")
    if reading is not None:
        reading.ignore(name)


def _without_unknown(kind: type[Body], given: Mapping[str, object], reading: Reading) -> Body:
    try:
        unknown = [
            path for path, value in _unknown(kind.model_validate(given, extra="allow"), ()) if value not in EMPTY
        ]
        if not (unknown and reading.refuses_unknown):
            for path in unknown:
                reading.ignore(".".join(step for step in path if isinstance(step, str)))
            return kind.model_validate(given, extra="ignore", context=reading)
        refused = _error(unknown[0], _RULES["extra_forbidden"])
    except ValidationError as error:
        refused = _first(error)
    try:
        raise refused
    finally:
        del refused


def _unknown(value: object, path: Path) -> Iterator[tuple[Path, object]]:
    if isinstance(value, BaseModel):
        for name, extra in (value.__pydantic_extra__ or {}).items():
            yield (*path, name), extra
        for name, inner in value.__dict__.items():
            yield from _unknown(inner, (*path, name.rstrip("_")))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _unknown(inner, (*path, index))


def _errors(error: ValidationError) -> list[ErrorDetails]:
    return error.errors(include_url=False, include_input=False)


def _first(error: ValidationError) -> ApiError:
    """Convert the first error; a wrong field takes precedence over a missing one."""
    first = min(_errors(error), key=lambda found: found["type"] == "missing")
    known = _RULES.get(first["type"])
    rule = first["msg"].replace("Input should", "must", 1) if known is None else known.format(**first.get("ctx", {}))
    path = first["loc"]
    named = path[-1:] if first["type"] == "extra_forbidden" else ()  # by the caller, perhaps like a tag
    return _error((*(step for step in path[: len(path) - len(named)] if not _is_tag(step)), *named), rule)


def _error(path: Path, rule: str) -> ApiError:
    param = ".".join(f"[{step}]" if isinstance(step, int) else shown_name(step) for step in path)
    return invalid(param or None, f"`{param}` {rule}.")


def _is_tag(step: int | str) -> bool:
    return isinstance(step, str) and step[:1] == "<"
