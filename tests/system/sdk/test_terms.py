"""On which terms a request is served: its lane, its deadline, its limits, and once though it is sent twice."""

import asyncio
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.support.system.harness import Server
from tests.support.system.sdk import ASKED, SAID, chat, chat_chunks, content, refused, texts
from tests.system.sdk.conftest import NewKey, NewTenant

pytestmark = [pytest.mark.system, pytest.mark.anyio]

LANES = [
    ({}, {}, "latency", "default"),
    ({"service_tier": "flex"}, {}, "throughput", "flex"),
    ({"service_tier": "priority"}, {}, "latency", "priority"),
    ({}, {"x-fairlane-lane": "throughput"}, "throughput", "default"),
    ({"service_tier": "priority"}, {"x-fairlane-lane": "throughput"}, "throughput", "default"),
]


@pytest.mark.parametrize(("asked", "headers", "lane", "tier"), LANES, ids=str)
def test_a_lane_is_asked_for_and_named(
    client: openai.OpenAI, asked: dict[str, Any], headers: dict[str, str], lane: str, tier: str
) -> None:
    raw = client.chat.completions.with_raw_response.create(**{**ASKED, **asked, "max_tokens": 1}, extra_headers=headers)
    chunks = chat_chunks(client, **asked, extra_headers=headers, max_tokens=1)

    assert raw.headers["x-fairlane-lane"] == lane
    assert raw.parse().service_tier == tier
    assert {chunk.service_tier for chunk in chunks} == {tier}


def test_a_tier_that_a_tenant_may_not_have_is_served_in_its_own(server: Server, new_key: NewKey) -> None:
    with server.sdk(new_key(lanes=["throughput"], default_lane="throughput"), max_retries=0) as client:
        answer = chat(client, service_tier="priority", max_tokens=1)

    assert answer.service_tier == "default"


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"x-fairlane-lane": "fast"}, "x-fairlane-lane"),
        ({"x-fairlane-deadline-ms": "soon"}, "x-fairlane-deadline-ms"),
        ({"x-fairlane-ttft-ms": "-1"}, "x-fairlane-ttft-ms"),
        ({"x-fairlane-progress": "yes"}, "x-fairlane-progress"),
    ],
    ids=str,
)
def test_a_header_that_says_nothing_is_refused_by_name(
    client: openai.OpenAI, headers: dict[str, str], param: str
) -> None:
    assert refused(chat, client, extra_headers=headers).param == param


@pytest.mark.parametrize("headers", [{"x-fairlane-deadline-ms": "60000"}, {"x-llm-d-slo-ttft-ms": "60000"}], ids=str)
def test_a_deadline_that_can_be_kept_is_kept(client: openai.OpenAI, headers: dict[str, str]) -> None:
    assert content(chat(client, extra_headers=headers)) == SAID


def test_a_key_sees_its_limits(server: Server, new_key: NewKey) -> None:
    limits = {"requests_per_minute": 10, "tokens_per_minute": 1_000}
    with server.sdk(new_key(limits=limits), max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(**{**ASKED, "max_tokens": 1})
        refusal = refused(chat, client, temperature=3)

    for headers in (raw.headers, refusal.response.headers):
        assert headers["x-ratelimit-limit-requests"] == "10"
        assert headers["x-ratelimit-limit-tokens"] == "1000"
    assert raw.headers["x-ratelimit-remaining-requests"] == "9"
    assert raw.headers["x-ratelimit-reset-requests"].endswith("s")


def test_an_answer_that_a_limit_cut_says_which(server: Server, new_key: NewKey) -> None:
    with server.sdk(new_key(limits={"max_output_tokens": 3}), max_retries=0) as client:
        answer = chat(client, max_tokens=None)
        chunks = chat_chunks(client, max_tokens=None)

    assert answer.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "length"
    for told in (answer, chunks[-1]):
        assert (told.model_extra or {})["fairlane"] == {"limited_by": "max_output_tokens"}


def once(name: str) -> dict[str, Any]:
    return {"extra_headers": {"Idempotency-Key": name}, "temperature": 1}


def test_a_request_that_is_sent_twice_is_answered_once(client: openai.OpenAI) -> None:
    first = chat(client, **once("plain"))
    raw = client.chat.completions.with_raw_response.create(**{**ASKED, **once("plain")})

    assert raw.parse() == first
    assert raw.headers["idempotent-replayed"] == "true"


def test_a_stream_that_is_sent_twice_is_told_again(client: openai.OpenAI) -> None:
    assert chat_chunks(client, **once("stream")) == chat_chunks(client, **once("stream"))


def test_another_request_by_the_same_name_is_a_conflict(client: openai.OpenAI) -> None:
    chat(client, **once("taken"), max_tokens=1)

    error = refused(chat, client, **once("taken"), max_tokens=2)

    assert isinstance(error, openai.ConflictError)
    assert (error.code, error.response.headers["x-should-retry"]) == ("idempotency_conflict", "false")


def test_a_refusal_is_not_kept(client: openai.OpenAI) -> None:
    assert refused(chat, client, **{**once("wrong"), "temperature": 3}).status_code == 400

    assert content(chat(client, **{**once("wrong"), "temperature": 0})) == SAID


async def test_requests_by_one_name_that_run_at_once_are_one(server: Server, new_key: NewKey) -> None:
    async with server.async_sdk(new_key(limits={"requests_per_minute": 1}), max_retries=0) as client:
        answers: list[ChatCompletion] = await asyncio.gather(
            *(client.chat.completions.create(**{**ASKED, **once("both")}) for _ in range(3))
        )

    assert len({answer.id for answer in answers}) == 1


def test_a_stream_is_charged_what_it_told(server: Server, new_tenant: NewTenant) -> None:
    tenant = new_tenant(limits={"tokens_per_day": 1_000})
    with server.sdk(tenant.key) as client:
        chunks = chat_chunks(client, stream_options={"include_usage": True}, stop=["Paris"])
        answer = chat(client, n=2, max_tokens=4)

    told, plain = chunks[-1].usage, answer.usage
    assert texts(chunks) == "The capital of France is "
    assert told is not None
    assert plain is not None
    with server.admin() as admin:
        quota = admin.get(f"/tenants/{tenant.id}/quota").raise_for_status().json()["limits"]["tokens_per_day"]
    assert quota["used"] == told.total_tokens + plain.total_tokens
