"""Field types that all request bodies share."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from fairlane.gateway.http.json_reader import is_unicode

MAX_HINT_CHARS = 512


def as_unicode(text: str) -> str:
    """Return the text, or raise a pydantic error if it holds a lone surrogate."""
    if not is_unicode(text):
        raise PydanticCustomError("unicode", "must be valid Unicode, without a lone surrogate")
    return text


def _as_flag(value: object) -> object:
    """Reject 0 and 1, which equal False and True and which a literal alone would accept."""
    if not isinstance(value, bool):
        raise PydanticCustomError("flag", "must be true or false")
    return value


On = Annotated[Literal[True], BeforeValidator(_as_flag)]
Off = Annotated[Literal[False], BeforeValidator(_as_flag)]
Text = Annotated[str, AfterValidator(as_unicode)]
# A text that does not change how the request is served.
Hint = Annotated[str, Field(max_length=MAX_HINT_CHARS), AfterValidator(as_unicode)]


class Fields(BaseModel):
    """An object of a body: strict, without unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)
