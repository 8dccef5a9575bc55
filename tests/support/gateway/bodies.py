"""Bodies of chats and completions as tests write them, and how one that is at fault is refused."""

import json
from typing import Any

import pytest

from fairlane.gateway.dialects.openai.chat_requests import parse_chat
from fairlane.gateway.dialects.openai.reading import Reading
from fairlane.gateway.dialects.openai.requests import ChatRequest, CompletionRequest, parse_completion
from fairlane.gateway.errors import ApiError

SECRET = "the prompt that nobody may read"
MESSAGES = [{"role": "user", "content": SECRET}]
CHAT = {"model": "tiny", "messages": MESSAGES}
COMPLETION = {"model": "tiny", "prompt": SECRET}
TOKEN_IDS = 2_000_000
"""That a completion's body may hold here."""


def chat(**fields: Any) -> ChatRequest:
    return parse_chat(json.dumps({**CHAT, **fields}).encode())


def completion(**fields: Any) -> CompletionRequest:
    return parse_completion(json.dumps({**COMPLETION, **fields}).encode(), Reading(TOKEN_IDS))


def refused(body: bytes | dict[str, Any], *, by_completion: bool = False) -> ApiError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(ApiError) as caught:
        parse_completion(raw, Reading(TOKEN_IDS)) if by_completion else parse_chat(raw)
    error = caught.value
    assert (error.code, error.status) == ("invalid_request_error", 400)
    assert SECRET not in error.message
    assert len(error.message) < 250
    assert error.__context__ is None  # a logged traceback would quote the body
    return error


def param(**fields: Any) -> str | None:
    return refused({**CHAT, **fields}).param
