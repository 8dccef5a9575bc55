"""What the checking of one request's forms and tools may take."""

import asyncio
import json
from typing import Any

import pytest

from fairlane.gateway.dialects.grammar.checker import GrammarChecker
from fairlane.gateway.dialects.grammar.structure import CheckedGrammar, Structure
from fairlane.gateway.dialects.openai.chat_requests import parse_chat
from fairlane.gateway.dialects.openai.requests import ChatRequest
from fairlane.gateway.errors import ApiError
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.gateway.pipeline import constraints
from fairlane.scheduler.protocol.grammar_limits import MAX_COMPILED_BYTES
from tests.support.gateway.tool_models import tool_card

pytestmark = [pytest.mark.slow, pytest.mark.anyio]
"""Tools are checked in processes."""


class SpendingChecker(GrammarChecker):
    """The second schema takes ten seconds by the loop's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.checked = 0

    async def check(self, structure: Structure, tenant_id: str) -> CheckedGrammar:
        self.checked += 1
        return await super().check(structure, tenant_id)

    @property
    def spent_s(self) -> float:
        return 10.0 if self.checked >= 2 else 0.0


def asked(tools: int) -> ChatRequest:
    parameters: dict[str, Any] = {"type": "object", "additionalProperties": False}
    offered = [
        {"type": "function", "function": {"name": f"f{number}", "parameters": parameters | {"title": f"{number}"}}}
        for number in range(tools)
    ]
    said = [{"role": "user", "content": "Hi"}]
    body = {"model": "m", "messages": said, "tools": offered, "tool_choice": "required"}
    return parse_chat(json.dumps(body).encode())


async def test_tools_that_take_too_long_to_check_are_refused_for_now_and_go_on_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, checker = TextModel(tool_card("Hermes")), SpendingChecker()
    loop = asyncio.get_running_loop()
    unspent_s = loop.time
    monkeypatch.setattr(loop, "time", lambda: unspent_s() + checker.spent_s)
    try:
        with pytest.raises(ApiError, match=r"tools\.\[2\]\.function\.parameters") as refused:
            await constraints.grammar_of(asked(4), model, (1,), checker, "acme")
        grammar = await constraints.grammar_of(asked(4), model, (1,), checker, "acme")
    finally:
        await checker.aclose()

    assert refused.value.code == "overloaded"
    assert refused.value.retry_after_s == 1.0
    assert grammar.text
    assert 4 * 20_000 < grammar.compiled_bytes < MAX_COMPILED_BYTES
