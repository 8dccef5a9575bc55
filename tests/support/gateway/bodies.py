"""Bodies of chats and completions as tests write them, and how one that is at fault is refused."""

import json
from typing import Any

import pytest

from fairlane.gateway.dialects.openai.chat_requests import parse_chat
from fairlane.gateway.dialects.openai.reading import Reading
from fairlane.gateway.dialects.openai.requests import ChatRequest, CompletionRequest, parse_completion
from fairlane.gateway.errors import ApiError
from tests.support.text_model import of_text

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
        parse_completion(raw, Reading(TOKEN_IDS)) if by_completion else _read_by_text_model(raw)
    error = caught.value
    assert (error.code, error.status) == ("invalid_request_error", 400)
    assert SECRET not in error.message
    assert len(error.message) < 250
    assert error.__context__ is None  # a logged traceback would quote the body
    return error


def _read_by_text_model(raw: bytes) -> ChatRequest:
    request = parse_chat(raw)  # a body alone, whose unknown fields are refused
    reading = Reading(TOKEN_IDS)
    parse_chat(raw, reading)
    return of_text(request, reading)


def param(**fields: Any) -> str | None:
    return refused({**CHAT, **fields}).param
