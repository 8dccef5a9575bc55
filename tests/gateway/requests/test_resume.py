"""What is sent again after a 5xx goes on from what it had published: the same answer, each token paid once."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlane.gateway.pipeline.resume import Head, begin, resumption
from fairlane.quotas.store import Resumption
from fairlane.scheduler.protocol.messages import Job, Sampling, TokenDelta
from tests.support.gateway.one_request import job as live
from tests.support.gateway.sent_twice import KEY, begun_with, is_replay, kept, post, used
from tests.support.gateway.served import ASKED, CHAT, COMPLETIONS, SAID, Served, error_of, serving, settings, until
from tests.support.scheduler.queues import job

pytestmark = pytest.mark.anyio

GREETING = "Grüße 🙂 aus Köln!"


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url, section={"quantum_tokens": 4})) as opened:
        await opened.tenant(limits={"tokens_per_day": 100_000})
        yield opened


async def broken_off(served: Served, asked: dict[str, Any], tokens: int, path: str = CHAT, jobs: int = 1) -> None:
    """Ask for what ends 500 after so many tokens of each choice."""
    served.worker.limit = tokens
    asking = asyncio.create_task(served.post(path, asked, idempotency_key=KEY))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == jobs * [tokens])
    served.worker.fails = "out of order"
    assert (await asking).status_code == 500
    await kept(served)
    served.worker.fails, served.worker.limit = "", None


@pytest.mark.parametrize("tokens", [1, 4, 7])
async def test_it_goes_on_where_it_broke_off(served: Served, tokens: int) -> None:
    await broken_off(served, ASKED, tokens)
    again = await post(served)
    await kept(served)

    assert (again.status_code, is_replay(again)) == (200, False)
    assert again.json()["choices"][0]["message"]["content"] == SAID
    assert again.json()["choices"][0]["finish_reason"] == "stop"
    usage = again.json()["usage"]
    assert usage["completion_tokens"] == len(served.worker.script)
    assert begun_with(served) == [[0], [tokens]]
    assert await used(served) == (usage["total_tokens"], 0)
    assert await served.ledger() == [
        ("failed", usage["prompt_tokens"], tokens),
        ("finished", 0, usage["completion_tokens"] - tokens),
    ]


@pytest.mark.parametrize("tokens", [3, 5])
async def test_a_character_that_was_cut_in_two_is_whole(served: Served, tokens: int) -> None:
    served.worker.words = GREETING
    served.worker._script = served.worker.script

    await broken_off(served, ASKED, tokens)
    again = await post(served)

    assert again.json()["choices"][0]["message"]["content"] == GREETING
    assert begun_with(served)[-1] == [tokens]


async def test_a_run_that_breaks_off_again_passes_all_on(served: Served) -> None:
    await broken_off(served, ASKED, 2)
    served.worker.limit = 5
    asking = asyncio.create_task(post(served))
    await until(lambda: max(map(len, served.worker.produced.values())) == 5)
    served.worker.fails = "out of order"
    assert (await asking).status_code == 500
    await kept(served)
    served.worker.fails, served.worker.limit = "", None
    again = await post(served)
    await kept(served)

    assert again.json()["choices"][0]["message"]["content"] == SAID
    assert begun_with(served) == [[0], [2], [5]]
    assert await used(served) == (again.json()["usage"]["total_tokens"], 0)


async def test_several_prompts_and_choices_go_on_each_from_its_own(served: Served) -> None:
    asked = {"model": "tiny", "prompt": [[5, 6], [7]], "n": 2, "max_tokens": 20, "ignore_eos": True}

    await broken_off(served, asked, 3, COMPLETIONS, jobs=2)
    again = await served.post(COMPLETIONS, asked, idempotency_key=KEY)
    await kept(served)

    assert again.json()["usage"]["completion_tokens"] == 80
    assert begun_with(served) == [[0, 0], [0, 0], [3, 3], [3, 3]]
    assert await used(served) == (83, 0)


async def test_a_request_that_ended_at_its_deadline_goes_on(served: Served) -> None:
    served.worker.limit = 3
    asking = asyncio.create_task(post(served, x_fairlane_deadline_ms="700"))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [3])
    late = await asking
    await kept(served)
    served.worker.limit = None
    again = await post(served, x_fairlane_deadline_ms="700")
    await kept(served)

    assert error_of(late) == (504, "deadline_exceeded")
    assert again.json()["choices"][0]["message"]["content"] == SAID
    assert begun_with(served) == [[0], [3]]
    assert await used(served) == (again.json()["usage"]["total_tokens"], 0)


async def test_only_what_is_left_has_to_fit_a_limit(served: Served) -> None:
    whole = (await served.post(CHAT, ASKED)).json()["usage"]["total_tokens"]
    await served.landed()
    await served.tenant("tight", limits={"tokens_per_day": whole})
    served.keys["acme"] = served.keys["tight"]
    served.worker.produced.clear()
    await broken_off(served, ASKED, 5)
    again = await post(served)
    await kept(served)

    assert again.json()["choices"][0]["message"]["content"] == SAID
    assert "fairlane" not in again.json()
    assert (await served.limits("tight"))["tokens_per_day"].used == whole


async def test_a_stop_string_across_the_break_ends_it(served: Served) -> None:
    asked = {**ASKED, "stop": ["France is"]}

    await broken_off(served, asked, 4)
    again = await post(served, asked)

    assert again.json()["choices"][0]["message"]["content"] == "The capital of "


@pytest.mark.parametrize("fields", [{"logprobs": True}, {"prompt_logprobs": 0}])
async def test_what_was_asked_for_with_log_probabilities_begins_anew_and_is_credited(
    served: Served, fields: dict[str, object]
) -> None:
    asked = {**ASKED, **fields}

    await broken_off(served, asked, 4)
    again = await post(served, asked)
    await kept(served)

    answer = again.json()
    if "logprobs" in fields:
        assert len(answer["choices"][0]["logprobs"]["content"]) == len(served.worker.script)
    else:
        assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert begun_with(served) == [[0], [0]]
    assert await used(served) == (again.json()["usage"]["total_tokens"], 0)


async def test_where_its_record_is_lost_it_begins_anew_and_is_credited(served: Served) -> None:
    await broken_off(served, ASKED, 4)
    lost = [key async for key in served.store.scan_iter("fl:{*}:job:*")]
    await served.store.delete(*lost)
    again = await post(served)
    await kept(served)

    assert again.json()["choices"][0]["message"]["content"] == SAID
    assert begun_with(served) == [[0], [0]]
    assert await used(served) == (again.json()["usage"]["total_tokens"], 0)


async def test_tokens_of_another_prompt_are_not_gone_on_from(served: Served) -> None:
    """A chat template may have the date in it."""
    await broken_off(served, ASKED, 4)
    (job,) = [key async for key in served.store.scan_iter("fl:{*}:job:*")]
    await served.store.hset(job, "print", "of yesterday")
    again = await post(served)
    await kept(served)

    assert again.json()["choices"][0]["message"]["content"] == SAID
    assert begun_with(served) == [[0], [0]]
    assert await used(served) == (again.json()["usage"]["total_tokens"], 0)


async def test_another_tenants_request_under_the_same_key_begins_with_nothing(served: Served) -> None:
    await served.tenant("other")
    await broken_off(served, ASKED, 4)

    theirs = await served.post(CHAT, ASKED, tenant="other", idempotency_key=KEY)

    assert theirs.status_code == 200
    assert begun_with(served) == [[0], [0]]


async def test_a_refused_retry_leaves_what_there_is_to_go_on_from(served: Served) -> None:
    await broken_off(served, ASKED, 4)
    tenant = await served.resources.accounts.tenants.get("acme")
    assert tenant is not None
    await served.resources.accounts.tenants.update(
        "acme", {"limits": {"requests_per_minute": 1}}, version=tenant.version
    )
    refused = await post(served)
    await served.resources.accounts.tenants.update(
        "acme", {"limits": {"requests_per_minute": None}}, version=tenant.version + 1
    )
    again = await post(served)

    assert error_of(refused) == (429, "rate_limit_exceeded")
    assert again.json()["choices"][0]["message"]["content"] == SAID
    assert begun_with(served) == [[0], [4]]


def job_of(max_tokens: int = 9, n: int = 3) -> Job:
    """Ends at the token 2."""
    sampling = Sampling(stop_token_ids=(2,))
    return job("f", n=n, max_tokens=max_tokens, granted_until=max_tokens, sampling=sampling)


def test_choices_that_were_over_stay_over_and_others_go_on() -> None:
    heads = (Head((5, 6, 2), 3, stopped=False), Head((5, 6, 7, 8), 2, stopped=True), Head((5,), 1, stopped=False))
    resumed = live("f", n=3)

    assert resumption([(job_of(), heads)]) == Resumption(published=6, ended=5, going=1, longest=1)
    assert not begin(resumed, job_of(), heads)
    events = [event for _, event in resumed.request.take_news() if isinstance(event, TokenDelta)]
    told = [(event.choice, event.token_ids, event.finish_reason) for event in events]
    assert told == [(0, (5, 6, 2), "stop"), (1, (5, 6, 7, 8), None), (2, (5,), None)]
    assert [choice.published for choice in resumed.choices] == [3, 4, 1]


def test_what_a_limit_leaves_no_more_for_is_over() -> None:
    heads = 2 * (Head((5, 6, 7), 3, stopped=False),)
    resumed = live("f", n=2)

    assert begin(resumed, job_of(max_tokens=3, n=2), heads)
    told = [event for _, event in resumed.request.take_news()]
    assert [event.finish_reason for event in told if isinstance(event, TokenDelta)] == ["length", "length"]
    assert resumed.finished is not None


def test_what_has_begun_shows_no_token() -> None:
    assert repr(Head((5, 6), 2, stopped=False)) == "Head(2 tokens, counted=2)"
