"""What all parts of a request body are made of."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from fairlane.gateway.http.json_reader import is_unicode

MAX_HINT_CHARS = 512


def as_unicode(text: str) -> str:
    """The text itself; a pydantic error where it holds a lone surrogate."""
    if not is_unicode(text):
        raise PydanticCustomError("unicode", "must be valid Unicode, without a lone surrogate")
    return text


def _as_flag(value: object) -> object:
    """0 and 1 equal false and true, and are none: a literal alone would take them."""
    if not isinstance(value, bool):
        raise PydanticCustomError("flag", "must be true or false")
    return value


On = Annotated[Literal[True], BeforeValidator(_as_flag)]
Off = Annotated[Literal[False], BeforeValidator(_as_flag)]
Text = Annotated[str, AfterValidator(as_unicode)]
Hint = Annotated[str, Field(max_length=MAX_HINT_CHARS), AfterValidator(as_unicode)]
"""A word about the request that changes nothing in how it is served."""


class Fields(BaseModel):
    """An object of a body: strict, with no field beyond those it names."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)
