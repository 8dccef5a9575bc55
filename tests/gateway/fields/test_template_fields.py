"""Fields that change how a model's chat template shows a conversation, as a caller sends them."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from fairlane.common.settings_error import SettingsError
from fairlane.gateway.config import parse, read
from fairlane.gateway.model_text.tokenizer import TextModel
from tests.support.gateway.cards import byte_level_card
from tests.support.gateway.served import CHAT, SAID, Served, serving, settings

pytestmark = pytest.mark.anyio
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
IGNORED = "x-fairlane-ignored"
TEMPLATE = (
    "{% for d in documents or [] %}[{{ d.title }}]{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
    "{% if date_string %}{{ date_string }}{% endif %}{% if secret %}{{ secret }}{% endif %}{# <think> </think> #}"
)
CARD = replace(byte_level_card(), chat_template=TEMPLATE)
MODEL = TextModel(CARD)
HI = [{"role": "user", "content": "Hi"}]
OPENED = "<|im_start|>assistant\n"
SETTING = "FAIRLANE_GATEWAY__CHAT_TEMPLATE_KWARGS"
UNTHOUGHT = f"{OPENED}<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
async def file_gateway(file_url: str) -> AsyncIterator[Served]:
    async with serving(settings(file_url), card=CARD) as opened:
        yield opened


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant()
    return fresh_gateway


async def ask(served: Served, path: str, fields: dict[str, Any]) -> httpx.Response:
    turns = {"input": "Hi"} if path == RESPONSES else {"messages": HI}
    return await served.post(path, {"model": "tiny", **turns, **fields})


def prompt_of(served: Served) -> str:
    """The prompt that the worker was last given, as text."""
    return MODEL.spelled_out(served.worker.seen[-1].job.prompt)


@pytest.mark.parametrize(
    ("path", "fields", "end", "ignored"),
    [
        (CHAT, {}, OPENED, None),
        (CHAT, {"reasoning_effort": "none"}, UNTHOUGHT, None),
        (CHAT, {"reasoning_effort": "high"}, OPENED, "reasoning_effort"),
        (CHAT, {"reasoning_effort": ""}, OPENED, None),
        (CHAT, {"reasoning": {"effort": "none"}}, UNTHOUGHT, None),
        (CHAT, {"reasoning": {"effort": "high"}}, OPENED, "reasoning.effort"),
        (CHAT, {"reasoning": {"enabled": False, "max_tokens": None}}, UNTHOUGHT, None),
        (CHAT, {"reasoning": {"enabled": False, "max_tokens": 9}}, UNTHOUGHT, "reasoning.max_tokens"),
        (CHAT, {"reasoning": {"enabled": False}, "reasoning_effort": "low"}, OPENED, "reasoning_effort"),
        (CHAT, {"thinking": {"type": "disabled", "clear_thinking": False}}, UNTHOUGHT, None),
        (CHAT, {"thinking": {"type": "enabled"}}, OPENED, None),
        (CHAT, {"thinking": "no"}, OPENED, "thinking"),
        (CHAT, {"enable_thinking": False}, UNTHOUGHT, None),
        (CHAT, {"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True}}, OPENED, None),
        (RESPONSES, {"reasoning": {"effort": "none"}}, UNTHOUGHT, None),
        (RESPONSES, {"reasoning": {"effort": "high"}}, OPENED, "reasoning.effort"),
        (RESPONSES, {"chat_template_kwargs": {"enable_thinking": False}}, UNTHOUGHT, None),
        (MESSAGES, {"thinking": {"type": "disabled"}}, UNTHOUGHT, None),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, OPENED, "thinking.budget_tokens"),
        (MESSAGES, {"chat_template_kwargs": {"enable_thinking": False}}, UNTHOUGHT, None),
        (MESSAGES, {"output_config": {"effort": "high"}}, OPENED, "output_config.effort"),
        (CHAT, {"chat_template_kwargs": {"enable_thinking": False}}, UNTHOUGHT, None),
        (CHAT, {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, OPENED, None),
        (CHAT, {"chat_template_kwargs": {"date_string": "1 May"}}, f"{OPENED}1 May", None),
        (CHAT, {"chat_template_kwargs": {"flavour": [1, {"a": "b"}]}}, OPENED, "chat_template_kwargs.flavour"),
        (CHAT, {"chat_template_kwargs": {"enable_thinking": None}}, OPENED, None),
        (CHAT, {"chat_template_kwargs": {}, "documents": []}, OPENED, None),
        (CHAT, {"chat_template_kwargs": None, "documents": None}, OPENED, None),
    ],
)  # fmt: skip
async def test_a_prompt_ends_as_the_fields_say(
    served: Served, path: str, fields: dict[str, Any], end: str, ignored: str | None
) -> None:
    answer = await ask(served, path, fields)

    assert answer.status_code == 200, answer.text
    assert prompt_of(served).endswith(f"Hi<|im_end|>\n{end}")
    assert answer.headers.get(IGNORED) == ignored


async def test_documents_reach_a_template_that_reads_them(served: Served) -> None:
    answer = await ask(served, CHAT, {"documents": [{"title": "Rivers", "text": "The Seine."}]})

    assert answer.status_code == 200
    assert prompt_of(served).startswith("[Rivers]<|im_start|>user")


PREFILL = [*HI, {"role": "assistant", "content": "The answer: "}]
CONTINUED = {"messages": PREFILL, "continue_final_message": True}


@pytest.mark.parametrize(
    ("path", "fields", "end"),
    [
        (CHAT, CONTINUED, f"{OPENED}The answer:"),  # the template strips texts
        (CHAT, {**CONTINUED, "add_generation_prompt": False}, f"{OPENED}The answer:"),
        (CHAT, {"messages": [*HI, {**PREFILL[-1], "prefix": True}]}, f"{OPENED}The answer:"),
        (CHAT, {"messages": [*HI, {**PREFILL[-1], "partial": True}]}, f"{OPENED}The answer:"),
        (CHAT, {"messages": [{**HI[0], "prefix": True}]}, OPENED),
        (CHAT, {"messages": HI, "continue_final_message": True}, "<|im_start|>user\nHi"),
        (CHAT, {"add_generation_prompt": False}, "Hi<|im_end|>\n"),
        (CHAT, {"messages": PREFILL, "add_generation_prompt": False}, "The answer:<|im_end|>\n"),
        (CHAT, {"add_generation_prompt": True, "continue_final_message": False}, OPENED),
        (MESSAGES, {"messages": PREFILL}, f"{OPENED}The answer:"),
        (MESSAGES, {"messages": PREFILL, "thinking": {"type": "disabled"}}, f"{OPENED}The answer:"),
        (MESSAGES, {"messages": [*HI, {"role": "assistant", "content": [{"type": "text", "text": "{"}]}]}, "{"),
        (MESSAGES, {"messages": [*HI, {"role": "assistant", "content": []}]}, OPENED),
    ],
)  # fmt: skip
async def test_a_last_message_is_ended_or_continued(
    served: Served, path: str, fields: dict[str, Any], end: str
) -> None:
    answer = await ask(served, path, fields)

    assert answer.status_code == 200, answer.text
    assert prompt_of(served).endswith(end)
    assert IGNORED not in answer.headers


async def test_a_continued_message_is_not_repeated(served: Served) -> None:
    answer = await ask(served, MESSAGES, {"messages": PREFILL})

    assert answer.json()["content"] == [{"type": "text", "text": SAID}]


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = [*HI, {"role": "assistant", "content": "I look.", "tool_calls": [CALL]}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({**CONTINUED, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"messages": CALLED, "continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": 1}, "continue_final_message"),
        ({"chat_template_kwargs": {"secret": "x"}}, "chat_template_kwargs.secret"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"enable_thinking": "x" * 5_000}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {f"k{number}": 1 for number in range(33)}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"documents": [{"title": "A"}] * 129}, "documents"),
        ({"documents": ["A"]}, "documents.[0]"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
    ],
)
async def test_what_may_not_be_set_is_refused_by_its_name(served: Served, fields: dict[str, Any], param: str) -> None:
    answer = await ask(served, CHAT, fields)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def variables_of(environ: dict[str, str]) -> tuple[str, ...]:
    line = parse([])
    return read(line, {"FAIRLANE_REDIS_URL": "redis://localhost", **environ}).gateway.chat_template_kwargs


def test_the_operator_says_which_variables_may_be_set() -> None:
    assert "enable_thinking" in variables_of({})
    assert variables_of({SETTING: "thinking, flavour"}) == ("thinking", "flavour")


@pytest.mark.parametrize("wrong", ["messages", "thinking,bos_token", "two words"])
def test_a_name_that_is_no_callers_stops_the_start(wrong: str) -> None:
    with pytest.raises(SettingsError, match=r"gateway\.chat_template_kwargs"):
        variables_of({SETTING: wrong})
