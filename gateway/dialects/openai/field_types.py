"""Field types that all request bodies share."""

import json
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

# In the schema of a field: a value of another form is ignored, not refused.
LENIENT = "x-fairlane-lenient"
MAX_HINT_CHARS = 512
# Values that ask for nothing in every field.
EMPTY: tuple[object, ...] = (None, "", [], {})
_T = TypeVar("_T")


def as_unicode(text: str) -> str:
    """Return the text, or raise a pydantic error if it holds a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("unicode", "must be valid Unicode, without a lone surrogate") from None
    return text


def json_text(value: object) -> str:
    """Return a value as JSON, or raise a pydantic error if JSON cannot hold it."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):  # the reader of large bodies keeps long lists only of token ids
        raise PydanticCustomError("json", "contains a number out of range, or a long list of numbers") from None
    return as_unicode(text)


def with_lists(value: object) -> object:
    """Return the value with lists instead of the tuples of token ids that the reader of large bodies makes."""
    if isinstance(value, dict):
        return {name: with_lists(inner) for name, inner in value.items()}
    return [with_lists(inner) for inner in value] if isinstance(value, list | tuple) else value


def _as_flag(value: object) -> object:
    if not isinstance(value, bool):
        raise PydanticCustomError("flag", "must be true or false")
    return value


def or_ignored(value: object, read: ValidatorFunctionWrapHandler, info: ValidationInfo, within: str = "") -> object:
    """Return a hint's value as declared; None for any other value, whose field the reading of the body then names."""
    if value in EMPTY:
        return None
    try:
        return read(value)
    except ValidationError:
        if info.context is not None and info.field_name is not None:
            info.context.ignore(within + info.field_name)
        return None


class Leniently(WrapValidator):
    """The validator of a hint. Its schema says that a value of another form is no error."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(core), LENIENT: True}


def lenient_in(parent: str) -> WrapValidator:
    """Return the validator of a hint inside the object `parent`."""
    return Leniently(partial(or_ignored, within=f"{parent}."))


Off = Annotated[Literal[False], BeforeValidator(_as_flag)]
Text = Annotated[str, AfterValidator(as_unicode)]
# For a field in which an empty value means what null does, and for one in which an empty list does.
NoneIfEmpty = BeforeValidator(lambda value: None if value in EMPTY else value)
NoneIfNoItems = BeforeValidator(lambda value: None if value == [] else value)
# The name of a function or a schema.
Identifier = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
# A text that does not change how the request is served.
Hint = Annotated[str, Field(max_length=MAX_HINT_CHARS), AfterValidator(as_unicode)]
# A field that never changes what an answer means: a value that is not as declared is ignored and named.
Lenient = Annotated[_T | None, Leniently(or_ignored)]
# A hint of any shape, ignored and named.
Ignored = Annotated[None, WrapValidator(or_ignored), WithJsonSchema({})]


def _open(schema: dict[str, Any]) -> None:
    schema.pop("additionalProperties", None)


class Fields(BaseModel):
    """An object of a body: strict. The reader of bodies decides what becomes of unknown fields."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, hide_input_in_errors=True, json_schema_extra=_open
    )
