"""`POST /v1/responses/compact`: replaces a conversation with its user messages and a summary by the model.

The summary is encrypted for its tenant; a client sends it back unchanged in place of what it summarizes."""

from typing import Annotated

from pydantic import Field

from fairlane.gateway.dialects.media_marks import MediaFound
from fairlane.gateway.dialects.openai.field_types import Hint, Text
from fairlane.gateway.dialects.openai.neutral import CACHE_HINTS, CALLER_HINTS, Neutral
from fairlane.gateway.dialects.openai.reading import Reading, checked
from fairlane.gateway.dialects.openai.request_bodies import RequestBody
from fairlane.gateway.dialects.openai.requests import Turn, stated_fields
from fairlane.gateway.dialects.openai.response_body import ResponseRequest
from fairlane.gateway.dialects.openai.response_conversation import Stored, conversation
from fairlane.gateway.dialects.openai.response_items import Close, Items, turns_of
from fairlane.gateway.dialects.openai.tools import ToolChoice
from fairlane.gateway.errors import invalid

NEUTRAL_COMPACTION: Neutral = {**CACHE_HINTS, **CALLER_HINTS, "image": (), "stream": (False,)}
MOST_SUMMARY_TOKENS = 4_096
_ASKED = (
    "Summarize the conversation so far for an assistant that will go on with it and can see nothing else of it. Keep "
    "what the user wants, decisions and their reasons, facts, names, numbers, paths and code that matter, what the "
    "tools found, what was done and what is left to do. Write the summary alone."
)


class CompactBody(RequestBody):
    """The body of `POST /v1/responses/compact`."""

    input: Items | None = None
    previous_response_id: Annotated[Hint, Field(min_length=1)] | None = None
    instructions: Text | None = None


class CompactRequest(ResponseRequest, frozen=True, kw_only=True):
    """A valid `POST /v1/responses/compact`."""

    close: Close


def parse_compaction(body: bytes, reading: Reading | None = None, *, stored: Stored) -> CompactRequest:
    """Parse a body. `stored`: what it refers to, with the tenant's seal. Raises ApiError naming the field."""
    asked = checked(CompactBody, NEUTRAL_COMPACTION, body, reading)
    if asked.input is None and asked.previous_response_id is None:
        raise invalid("input", "`input` or `previous_response_id` is required.")
    items = conversation(asked.input or [], asked.previous_response_id, stored)
    assert stored.closes is not None  # noqa: S101 - the endpoint always brings the seal
    found = MediaFound() if reading is None else reading.found
    turns = turns_of(items, asked.instructions, found, len(asked.input or ()))
    if not turns:
        raise invalid("input", "`input` contains nothing to summarize.")
    return CompactRequest(
        **stated_fields(asked),
        messages=(*turns, Turn(role="user", content=_ASKED)),
        items=tuple(items),
        tool_choice=ToolChoice("none"),
        longest_summary=MOST_SUMMARY_TOKENS,
        store=False,
        echo={},
        close=stored.closes,
    )
