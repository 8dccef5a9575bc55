"""vLLM's fields for the tokens of an answer: which may be drawn, what is shown of them, and the prompt's
log-probabilities."""

from typing import Annotated

import msgspec
from pydantic import BeforeValidator, Field

from fairlane.common.views import about
from fairlane.gateway.dialects.openai.field_types import Fields, Text
from fairlane.gateway.http.lifted import MAX_TOKEN_ID

# Alternatives per token, as vLLM's `max_logprobs`.
MAX_LOGPROBS = 20
# Tokens to which one request restricts its output.
MAX_ALLOWED = 1024
MAX_BAD_WORDS = 128
MAX_WORD_CHARS = 256


def _as_tuple(listed: object) -> object:
    return tuple(listed) if isinstance(listed, list) else listed


TokenIds = Annotated[tuple[Annotated[int, Field(ge=0, lt=MAX_TOKEN_ID)], ...], BeforeValidator(_as_tuple)]
Word = Annotated[Text, Field(min_length=1, max_length=MAX_WORD_CHARS)]


class Display(msgspec.Struct, frozen=True):
    """What an answer shows of its tokens, in addition to their text."""

    # Special tokens by name.
    special_tokens: bool = False
    # The stop string or token that ended the choice.
    stops: bool = False
    # The ids of prompt and output.
    token_ids: bool = False
    # `token_id:5` in place of a token's text in log-probabilities.
    names_by_id: bool = False


USUAL_DISPLAY = Display()


class EngineFields(Fields):
    """vLLM's additional fields of chat and plain completions."""

    skip_special_tokens: Annotated[bool | None, about("False: show special tokens by name; absent: true")] = None
    include_stop_str_in_output: Annotated[bool | None, about("Show the stop string or token that ended the output")] = (
        None
    )
    return_token_ids: Annotated[
        bool | None, about("Return `token_ids` of each choice or chunk, and `prompt_token_ids`")
    ] = None
    return_tokens_as_token_ids: Annotated[bool | None, about("Name tokens in log-probabilities `token_id:5`")] = None
    prompt_logprobs: Annotated[
        int | None,
        Field(ge=0, le=MAX_LOGPROBS),
        about("Return log-probabilities of the prompt's tokens, and of this many most likely ones; not in streams"),
    ] = None
    allowed_token_ids: Annotated[
        TokenIds | None, Field(max_length=MAX_ALLOWED), about("Draw only these tokens; absent or empty: all")
    ] = None
    bad_words: Annotated[
        list[Word] | None,
        Field(max_length=MAX_BAD_WORDS, fail_fast=True),
        about("Words that the output does not contain, alone or after a space"),
    ] = None


_DISPLAY_FIELDS = frozenset(EngineFields.model_fields) - {"prompt_logprobs", "allowed_token_ids", "bad_words"}


def read_display(body: EngineFields) -> Display:
    """Return what the answer shows."""
    if not _DISPLAY_FIELDS & body.model_fields_set:
        return USUAL_DISPLAY
    return Display(
        special_tokens=body.skip_special_tokens is False,
        stops=bool(body.include_stop_str_in_output),
        token_ids=bool(body.return_token_ids),
        names_by_id=bool(body.return_tokens_as_token_ids),
    )
