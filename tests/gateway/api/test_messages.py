"""`/v1/messages` as Anthropic's own SDK sees it: answers, streams, tools, errors, counts."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any, cast

import anthropic
import pytest
from anthropic.types import Message, MessageParam, ToolParam, ToolUseBlock
from pydantic import BaseModel

from tests.support.gateway.served import SAID, WAIT_S, Served, serving, settings
from tests.support.gateway.tool_models import tool_card

pytestmark = pytest.mark.anyio

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
ASKED: list[MessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
BODY: dict[str, Any] = {"model": "tiny", "max_tokens": 50, "messages": ASKED}
WEATHER: ToolParam = {
    "name": "weather",
    "description": "Tells the weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALLED = 'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


def sdk(served: Served, **options: Any) -> anthropic.AsyncAnthropic:
    known = {"api_key": served.keys["acme"], "max_retries": 0, "timeout": WAIT_S}
    return anthropic.AsyncAnthropic(base_url=served.url, **{**known, **options})


def blocks(message: Message) -> list[dict[str, Any]]:
    return [cast(Any, block).to_dict() for block in message.content]


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant(limits={"tokens_per_day": 100_000})
    return fresh_gateway


@pytest.fixture
async def thinking(valkey_url: str) -> AsyncIterator[Served]:
    """A model that thinks and calls tools."""
    async with serving(settings(valkey_url), card=tool_card("Qwen 3")) as opened:
        await opened.tenant()
        yield opened


async def test_a_plain_answer_is_a_message(served: Served) -> None:
    async with sdk(served) as client:
        message = await client.messages.create(model="tiny", max_tokens=50, messages=ASKED)

    assert [block.type for block in message.content] == ["text"]
    assert blocks(message)[0]["text"] == SAID
    assert (message.type, message.role, message.model, message.id[:4]) == ("message", "assistant", "tiny", "msg_")
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.service_tier == "standard"
    await served.landed()
    charged = message.usage.input_tokens, message.usage.output_tokens
    assert await served.ledger() == [("finished", *charged)]
    assert charged[1] == len(served.worker.script)


async def test_a_stream_is_told_in_events_that_the_sdk_puts_together(served: Served) -> None:
    async with sdk(served) as client, client.messages.stream(model="tiny", max_tokens=50, messages=ASKED) as stream:
        events = [event.type async for event in stream]
        message = await stream.get_final_message()

    kinds = [kind for kind in events if kind not in ("text", "content_block_delta")]
    assert kinds == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    assert events.count("content_block_delta") > 1
    assert blocks(message)[0]["text"] == SAID
    assert message.stop_reason == "end_turn"
    await served.landed()
    assert await served.ledger() == [("finished", message.usage.input_tokens, message.usage.output_tokens)]


async def test_the_sdk_without_asyncio_works_too(served: Served) -> None:
    def ask() -> tuple[str, str]:
        with anthropic.Anthropic(base_url=served.url, api_key=served.keys["acme"], max_retries=0) as client:
            plain = client.messages.create(model="tiny", max_tokens=50, messages=ASKED)
            with client.messages.stream(model="tiny", max_tokens=50, messages=ASKED) as stream:
                return blocks(plain)[0]["text"], "".join(stream.text_stream)

    assert await asyncio.to_thread(ask) == (SAID, SAID)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_says_what_ended_it(served: Served, stream: bool) -> None:
    async def end(**asked: Any) -> tuple[str | None, str | None]:
        async with sdk(served) as client, client.messages.stream(**{**BODY, **asked}) as told:
            message = await told.get_final_message() if stream else await client.messages.create(**{**BODY, **asked})
            return message.stop_reason, message.stop_sequence

    assert await end(stop_sequences=["nowhere", "Par"]) == ("stop_sequence", "Par")
    assert await end(max_tokens=2) == ("max_tokens", None)
    assert await end() == ("end_turn", None)


async def test_max_tokens_is_never_required(served: Served) -> None:
    answer = await served.post(MESSAGES, {"model": "tiny", "messages": ASKED})

    assert answer.status_code == 200
    assert answer.json()["stop_reason"] == "end_turn"


async def test_a_call_goes_to_its_tool_and_the_result_back(thinking: Served) -> None:
    thinking.worker.say(CALLED)
    question: MessageParam = {"role": "user", "content": "What is the weather in Köln?"}
    async with sdk(thinking) as client:
        asked: dict[str, Any] = {"model": "Qwen 3", "max_tokens": 200, "tools": [WEATHER]}
        message = await client.messages.create(messages=[question], **asked)
        async with client.messages.stream(messages=[question], **asked) as stream:
            streamed = await stream.get_final_message()
        thinking.worker.say("It rains.")
        call = cast(ToolUseBlock, message.content[-1])
        result: MessageParam = {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}],
        }
        said: list[MessageParam] = [question, {"role": "assistant", "content": streamed.content}, result]
        answer = await client.messages.create(messages=said, **asked)

    for told in (message, streamed):
        text, called = blocks(told)
        assert text["text"].strip() == "I look."
        assert (called["type"], called["name"], called["input"]) == ("tool_use", "weather", {"city": "Köln"})
        assert called["id"].startswith("toolu_")
        assert told.stop_reason == "tool_use"
    assert blocks(answer)[0]["text"] == "It rains."
    prompt = thinking.resources.fleet.cache.models["Qwen 3"].text.tail(thinking.worker.seen[-1].job.prompt)
    assert "<tool_response>\nrain\n</tool_response>" in prompt


async def test_a_forced_tool_is_forced_by_grammar(thinking: Served) -> None:
    thinking.worker.say(CALLED)
    async with sdk(thinking) as client:
        for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}, {"type": "auto"}, {"type": "none"}):
            await client.messages.create(
                model="Qwen 3", max_tokens=200, messages=ASKED, tools=[WEATHER], tool_choice=cast(Any, choice)
            )

    assert [bool(lease.job.grammar) for lease in thinking.worker.seen] == [True, True, False, False]


async def test_thinking_is_told_where_it_is_asked_for(thinking: Served) -> None:
    thinking.worker.say("<think>\nParis, surely.\n</think>\n\nParis.")
    asked: dict[str, Any] = {"model": "Qwen 3", "max_tokens": 100, "messages": ASKED}
    async with sdk(thinking) as client:
        hidden = await client.messages.create(**asked)
        plain = await client.messages.create(**asked, thinking={"type": "adaptive"})
        async with client.messages.stream(**asked, thinking={"type": "enabled", "budget_tokens": 1024}) as stream:
            streamed = await stream.get_final_message()
        again = [*ASKED, {"role": "assistant", "content": streamed.content}, *ASKED]
        await client.messages.create(**{**asked, "messages": again})

    assert [block.type for block in hidden.content] == ["text"]
    for message in (plain, streamed):
        thought, text = blocks(message)
        assert (thought["type"], thought["thinking"].strip()) == ("thinking", "Paris, surely.")
        assert thought["signature"]
        assert text["text"].strip() == "Paris."
        assert message.usage.output_tokens == hidden.usage.output_tokens
    prompt = thinking.resources.fleet.cache.models["Qwen 3"].text.tail(thinking.worker.seen[-1].job.prompt)
    assert "Paris." in prompt


class City(BaseModel):
    """What an answer is to be."""

    name: str


async def test_an_answer_in_a_form_is_parsed_by_the_sdk(served: Served) -> None:
    served.worker.say('{"name": "Paris"}')
    async with sdk(served) as client:
        message = await client.messages.parse(model="tiny", max_tokens=50, messages=ASKED, output_format=City)

    assert message.parsed_output == City(name="Paris")
    assert served.worker.seen[-1].job.grammar


async def test_a_prompt_is_counted_as_it_is_charged_and_costs_nothing(served: Served) -> None:
    system = [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}]
    async with sdk(served) as client:
        counted = await client.messages.count_tokens(model="tiny", messages=ASKED, system=cast(Any, system))
        assert (await served.limits())["tokens_per_day"].used == 0
        message = await client.messages.create(
            model="tiny", max_tokens=5, messages=ASKED, system=cast(Any, system), tools=[]
        )

    assert counted.input_tokens == message.usage.input_tokens
    assert len(served.worker.seen) == 1


async def test_a_prompt_over_the_context_is_refused_with_its_count_as_at_tokenize(served: Served) -> None:
    card = served.worker.card
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "q" * card.context_length}]}

    counted, tokenised = await served.post(COUNT, asked), await served.post("/tokenize", asked)

    assert (counted.status_code, tokenised.status_code) == (400, 400)
    assert counted.json()["error"]["type"] == "invalid_request_error"
    tokens = [re.findall(r"(\d+) tokens", answer.json()["error"]["message"]) for answer in (counted, tokenised)]
    assert tokens[0][0] == tokens[1][1] > str(card.context_length)


async def test_tools_count_too(thinking: Served) -> None:
    async with sdk(thinking) as client:
        without = await client.messages.count_tokens(model="Qwen 3", messages=ASKED)
        counted = await client.messages.count_tokens(model="Qwen 3", messages=ASKED, tools=[WEATHER])

    assert counted.input_tokens > without.input_tokens


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
@pytest.mark.parametrize("headers", [{}, {"x-api-key": "fl-nobody-nothing"}, {"x-api-key": "é"}, {"x-api-key": ""}])
async def test_a_key_that_does_not_work_is_an_authentication_error(
    served: Served, path: str, headers: dict[str, str]
) -> None:
    async with served.http as client:
        sent = [(name.encode(), value.encode()) for name, value in headers.items()]
        answer = await client.post(path, json=BODY, headers=sent)

    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "authentication_error"
    assert "x-api-key" in answer.json()["error"]["message"]
    assert answer.json()["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("header", ["x-api-key", "api-key"])
@pytest.mark.parametrize(
    ("method", "path"), [("POST", MESSAGES), ("POST", "/v1/chat/completions"), ("GET", "/v1/limits")]
)
async def test_every_tenant_path_takes_the_key_as_anthropic_and_azure_send_it(
    served: Served, method: str, path: str, header: str
) -> None:
    async with served.http as client:
        headers = {header: served.keys["acme"]}
        answer = await client.request(method, path, headers=headers, json=BODY if method == "POST" else None)
        both = {**headers, "authorization": "Bearer fl-nobody-nothing"}
        refused = await client.request(method, path, headers=both, json=BODY if method == "POST" else None)

    assert answer.status_code == 200
    assert refused.status_code == 401  # the one that every other path reads


async def test_operators_are_not_asked_for_it(served: Served) -> None:
    async with served.http as client:
        answer = await client.get("/admin/v1/tenants", headers={"x-api-key": served.keys["acme"]})

    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("asked", "kind", "told", "param"),
    [
        ({"model": "nope"}, anthropic.NotFoundError, "not_found_error", "model"),
        ({"extra_body": {"temperature": 7}}, anthropic.BadRequestError, "invalid_request_error", "temperature"),
        ({"container": "c"}, anthropic.BadRequestError, "invalid_request_error", "container"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_are_the_sdks_errors(
    served: Served, asked: dict[str, Any], kind: type[anthropic.APIStatusError], told: str, param: str, stream: bool
) -> None:
    with pytest.raises(kind) as refused:
        async with sdk(served) as client:
            await client.messages.create(**{**BODY, **asked}, stream=stream)

    body = cast(dict[str, Any], refused.value.body)
    assert body["type"] == "error"
    assert (body["error"]["type"], body["error"]["param"]) == (told, param)
    assert refused.value.request_id == body["request_id"]
    assert (await served.limits())["tokens_per_day"].reserved == 0


async def test_a_limit_is_named_and_the_sdk_waits_for_it(served: Served) -> None:
    await served.tenant("small", limits={"requests_per_minute": 1})
    async with sdk(served, api_key=served.keys["small"]) as client:
        done = await client.messages.with_raw_response.create(**BODY)
        with pytest.raises(anthropic.RateLimitError) as refused:
            await client.messages.create(**BODY)

    error = cast(Any, refused.value.body)["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert error["limit"]["name"] == "requests_per_minute"
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert done.headers["anthropic-ratelimit-requests-limit"] == "1"
    assert done.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert done.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
    assert done.headers["x-ratelimit-limit-requests"] == "1"


async def test_a_stream_that_cannot_go_on_ends_with_an_error_event(served: Served) -> None:
    served.worker.limit = 2

    async def hear_all() -> None:
        async with sdk(served) as client:
            stream = await client.messages.create(**BODY, stream=True, extra_body={"deadline_ms": 1_500})
            async for _ in stream:
                pass

    with pytest.raises(anthropic.APIStatusError) as failed:
        await hear_all()

    body = cast(dict[str, Any], failed.value.body)
    assert (body["type"], body["error"]["type"]) == ("error", "timeout_error")
    assert body["error"]["code"] == "deadline_exceeded"


@pytest.mark.parametrize("stream", [False, True])
async def test_sent_twice_under_one_key_it_runs_once(served: Served, stream: bool) -> None:
    body = {**BODY, "stream": stream}
    first = await served.post(MESSAGES, body, idempotency_key="one")
    again = await served.post(MESSAGES, body, idempotency_key="one", x_api_key="ignored")
    async with served.http as client:
        headers = {"x-api-key": served.keys["acme"], "idempotency-key": "one"}
        by_other_header = await client.post(MESSAGES, json=body, headers=headers)

    assert first.content == again.content == by_other_header.content
    assert by_other_header.headers["idempotent-replayed"] == "true"
    assert len(served.worker.seen) == 1


async def test_the_lane_is_asked_for_as_everywhere(served: Served) -> None:
    plain = await served.post(MESSAGES, {**BODY, "service_tier": "flex"})
    strict = await served.post(MESSAGES, {**BODY, "service_tier": "standard_only"}, x_fairlane_lane="throughput")

    assert plain.headers["x-fairlane-lane"] == strict.headers["x-fairlane-lane"] == "throughput"
    assert plain.json()["usage"]["service_tier"] == "batch"
    assert strict.json()["usage"]["service_tier"] == "standard"


async def test_models_are_listed_in_the_callers_words(served: Served) -> None:
    async with sdk(served) as client:
        listed = [model async for model in client.models.list()]
        shown = await client.models.retrieve("tiny")

    assert [model.id for model in listed] == ["tiny"]
    assert shown == listed[0]
    assert shown.max_input_tokens == 512
    assert (await served.get("/v1/models")).json()["data"][0]["object"] == "model"


async def test_what_claude_code_sends_is_taken(thinking: Served) -> None:
    """As it speaks to a gateway: betas in query and header, hints in the body, a system prompt that begins with what it
    is billed to."""
    thinking.worker.say(CALLED)
    cache = {"type": "ephemeral", "ttl": "1h", "scope": "global"}

    def body(nonce: str) -> dict[str, Any]:
        attribution = f"x-anthropic-billing-header: cc_version=2.1.177; cc_entrypoint=cli; cch={nonce};"
        return {
            "model": "Qwen 3",
            "max_tokens": 1000,
            "stream": True,
            "temperature": 1,
            "metadata": {"user_id": "user_0_account__session_0"},
            "system": [
                {"type": "text", "text": attribution},
                {"type": "text", "text": "You help people.", "cache_control": cache},
            ],
            "tools": [{**WEATHER, "eager_input_streaming": True, "defer_loading": False, "cache_control": cache}],
            "thinking": {"type": "adaptive", "display": "omitted"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"},
            "diagnostics": {"previous_message_id": None},
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Hello", "cache_control": cache}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "", "signature": "unsigned"},
                        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "no city", "is_error": True},
                        {"type": "text", "text": "<system-reminder>Name one.</system-reminder>"},
                    ],
                },
            ],
        }

    for nonce in ("0aaa9", "36ee5"):
        beta = "claude-code-20250219,interleaved-thinking-2025-05-14"
        headers = {"anthropic_beta": beta, "anthropic_version": "2023-06-01", "x_app": "cli"}
        answer = await thinking.post(f"{MESSAGES}?beta=true", body(nonce), **headers)
        assert answer.status_code == 200, answer.text
        assert "event: message_stop" in answer.text
        assert '"stop_reason":"tool_use"' in answer.text

    first, second = (lease.job.prompt for lease in thinking.worker.seen)
    assert first == second


async def test_the_sdks_beta_works_too(served: Served) -> None:
    async with sdk(served) as client:
        betas = ["context-management-2025-06-27"]
        message = await client.beta.messages.create(model="tiny", max_tokens=50, messages=cast(Any, ASKED), betas=betas)
        async with client.beta.messages.stream(
            model="tiny", max_tokens=50, messages=cast(Any, ASKED), betas=betas
        ) as stream:
            text = "".join([piece async for piece in stream.text_stream])

    assert message.stop_reason == "end_turn"
    assert text == SAID


async def test_a_key_for_messages_may_count_them_and_no_more(served: Served) -> None:
    await served.tenant("scoped", scopes={"endpoints": [MESSAGES]})

    assert (await served.post(MESSAGES, BODY, tenant="scoped")).status_code == 200
    counted = await served.post(COUNT, {"model": "tiny", "messages": ASKED}, tenant="scoped")
    assert counted.status_code == 200
    refused = await served.post("/v1/chat/completions", BODY, tenant="scoped")
    assert refused.json()["error"]["code"] == "endpoint_not_allowed"


@pytest.mark.parametrize("words", ["x" * 10_000, "x " * 20_000])
async def test_a_prompt_over_the_context_is_refused_before_it_is_counted(served: Served, words: str) -> None:
    answer = await served.post(COUNT, {"model": "tiny", "messages": [{"role": "user", "content": words}]})

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
async def test_a_path_that_takes_no_get_says_so_in_anthropics_form(served: Served, path: str) -> None:
    answer = await served.get(path)

    assert answer.status_code == 405
    assert answer.json()["error"]["code"] == "method_not_allowed"
    assert answer.json()["type"] == "error"
