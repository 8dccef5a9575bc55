"""Output that is held quantum by quantum, through the whole gateway: exact, paused by a full minute, ended by a day."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest

from fairlane.gateway.pipeline import grants as grants
from fairlane.quotas import keyspace
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.store import Extension, Need
from fairlane.store.errors import StoreUnavailable
from tests.support.gateway.served import COMPLETIONS, Served, error_of, serving, settings, until
from tests.support.quotas.house import forget_minute

pytestmark = pytest.mark.anyio

ENDLESS = {"model": "tiny", "prompt": [5], "ignore_eos": True}


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url, section={"quantum_tokens": 8})) as found:
        yield found


async def used(served: Served, name: str) -> tuple[int, int]:
    status = (await served.limits())[name]
    return status.used, status.reserved


@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 33])
async def test_a_request_gets_all_that_it_asks_for_and_is_charged_that(served: Served, tokens: int) -> None:
    await served.tenant(limits={"tokens_per_day": 1_000, "tokens_per_minute": 1_000})

    answer = (await served.post(COMPLETIONS, {**ENDLESS, "max_tokens": tokens})).json()

    assert answer["usage"]["completion_tokens"] == tokens
    assert "fairlane" not in answer
    for name in ("tokens_per_day", "tokens_per_minute"):
        assert await used(served, name) == (tokens + 1, 0)
    assert served.worker.seen[0].job.granted_until == min(8, tokens)


async def test_several_prompts_and_choices_come_to_their_ends(served: Served) -> None:
    await served.tenant(limits={"tokens_per_day": 1_000})

    answer = (await served.post(COMPLETIONS, {**ENDLESS, "prompt": [[5], [6]], "n": 2, "max_tokens": 20})).json()

    assert answer["usage"]["completion_tokens"] == 80
    assert await used(served, "tokens_per_day") == (82, 0)


async def test_a_spent_day_ends_the_answer_and_says_so(served: Served) -> None:
    await served.tenant(limits={"tokens_per_day": 30})

    answer = (await served.post(COMPLETIONS, ENDLESS)).json()
    late = await served.post(COMPLETIONS, ENDLESS)

    assert answer["usage"]["total_tokens"] == 30
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["fairlane"] == {"limited_by": "tokens_per_day"}
    assert error_of(late) == (429, "insufficient_quota")
    await served.landed()
    assert await used(served, "tokens_per_day") == (30, 0)
    assert await served.ledger() == [("finished", 1, 29)]


async def test_a_spent_day_ends_every_choice(served: Served) -> None:
    await served.tenant(limits={"tokens_per_day": 30})

    answer = (await served.post(COMPLETIONS, {**ENDLESS, "n": 3})).json()

    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * 3
    assert answer["usage"]["total_tokens"] == 28  # a token more for each of three does not fit
    assert await used(served, "tokens_per_day") == (28, 0)


async def test_a_full_minute_pauses_a_stream_which_goes_on_where_it_stopped(served: Served) -> None:
    await served.tenant(limits={"tokens_per_minute": 16})
    await served.post(COMPLETIONS, {**ENDLESS, "max_tokens": 10})
    body = {**ENDLESS, "max_tokens": 12, "stream": True, "stream_options": {"include_usage": True}}

    reading = asyncio.create_task(served.post(COMPLETIONS, body, x_fairlane_progress="1"))
    await served.paused()
    made = len(served.worker.produced[served.worker.seen[-1].job.job_id])
    await forget_minute(served.store, "acme")
    stream = (await reading).text
    await served.landed()

    assert made == 4
    assert ": paused" in stream
    assert stream.rstrip().endswith("data: [DONE]")
    assert '"completion_tokens":12' in stream.replace(" ", "")
    assert await served.ledger() == [("finished", 1, 10), ("finished", 1, 12)]
    assert (await used(served, "tokens_per_minute"))[1] == 0


async def test_while_a_request_is_paused_new_ones_are_refused_and_it_goes_on_first(served: Served) -> None:
    await served.tenant(limits={"tokens_per_minute": 16})
    old = asyncio.create_task(served.post(COMPLETIONS, ENDLESS | {"stream": True}))
    await until(lambda: bool(served.worker.leases))
    job = next(iter(served.worker.leases))
    await until(lambda: len(served.worker.produced[job]) == 15)
    await served.paused()

    refused = await served.post(COMPLETIONS, {**ENDLESS, "max_tokens": 1})
    longer = await served.post(COMPLETIONS, {**ENDLESS, "max_tokens": 2})
    await forget_minute(served.store, "acme")
    await until(lambda: len(served.worker.produced[job]) > 15)
    old.cancel()
    await served.landed()

    assert error_of(refused) == (429, "rate_limit_exceeded")
    assert "to begin with" not in refused.json()["error"]["message"]
    assert error_of(longer) == (429, "rate_limit_exceeded")
    assert " asked for to begin with, " in longer.json()["error"]["message"]
    assert refused.headers["retry-after"]
    assert (await used(served, "tokens_per_minute"))[1] == 0


async def test_a_paused_client_that_leaves_is_charged_what_it_got(served: Served) -> None:
    await served.tenant(limits={"tokens_per_minute": 16, "tokens_per_day": 1_000})
    gone = asyncio.create_task(served.post(COMPLETIONS, ENDLESS | {"stream": True}))
    await served.paused()
    gone.cancel()
    await until(lambda: bool(served.worker.cancelled))
    await served.landed()

    assert await used(served, "tokens_per_day") == (16, 0)
    assert await served.ledger() == [("cancelled", 1, 15)]
    assert not await served.store.zcard(keyspace.of_root("acme") + "paused:tenant:acme")


async def test_a_tenant_that_reserves_in_full_holds_all_from_the_start(served: Served) -> None:
    await served.tenant(limits={"tokens_per_day": 1_000}, reserve="full")
    served.worker.limit = 3
    running = asyncio.create_task(served.post(COMPLETIONS, {**ENDLESS, "max_tokens": 100}))
    await until(lambda: bool(served.worker.leases))

    assert await used(served, "tokens_per_day") == (0, 101)
    served.worker.limit = None
    assert (await running).status_code == 200


async def test_a_pause_that_lasts_too_long_ends_the_answer_with_what_it_has(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grants, "MAX_PAUSE_S", 0.3)
    await served.tenant(limits={"tokens_per_minute": 16})

    answer = (await served.post(COMPLETIONS, ENDLESS)).json()

    assert answer["usage"]["total_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["fairlane"] == {"limited_by": "tokens_per_minute"}


async def test_a_budget_that_answers_again_lets_the_request_go_on(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.tenant(limits={"tokens_per_day": 1_000})
    refusals, extend = iter(range(3)), RedisQuotaStore.extend

    async def fails_thrice(store: RedisQuotaStore, root: str, job_id: str, need: Need) -> Extension:
        if next(refusals, None) is not None:
            raise StoreUnavailable("away")
        return await extend(store, root, job_id, need)

    monkeypatch.setattr(RedisQuotaStore, "extend", fails_thrice)
    answer = (await served.post(COMPLETIONS, {**ENDLESS, "max_tokens": 30})).json()

    assert answer["usage"]["completion_tokens"] == 30
    assert await used(served, "tokens_per_day") == (31, 0)


async def test_a_budget_that_stays_away_ends_the_request_with_an_error(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(store: RedisQuotaStore, root: str, job_id: str, need: Need) -> Extension:
        raise StoreUnavailable("away")

    monkeypatch.setattr(grants, "MAX_PAUSE_S", 0.3)
    monkeypatch.setattr(RedisQuotaStore, "extend", fails)
    await assert_ended_unavailable(served)


async def test_a_spent_day_is_told_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bool] = []
    extend = RedisQuotaStore.extend

    async def noted(store: RedisQuotaStore, root: str, job_id: str, need: Need) -> Extension:
        extension = await extend(store, root, job_id, need)
        answers.append(extension.spent)
        return extension

    monkeypatch.setattr(RedisQuotaStore, "extend", noted)
    await served.tenant(limits={"tokens_per_day": 30})
    served.worker.limit = 24
    asked = asyncio.create_task(served.post(COMPLETIONS, {**ENDLESS, "n": 1}))
    await until(lambda: True in answers)
    for tokens in range(25, 40):  # one by one, each of which could ask again
        served.worker.limit = tokens
        await asyncio.sleep(0)
    answer = (await asked).json()

    assert answer["usage"]["total_tokens"] == 30
    assert answers.count(True) == 1


async def assert_ended_unavailable(served: Served) -> None:
    """A request that can get no more than its first quantum ends with an error, and is charged what came."""
    await served.tenant(limits={"tokens_per_day": 1_000})

    refused = await served.post(COMPLETIONS, {**ENDLESS, "max_tokens": 30})
    await served.landed()

    assert error_of(refused) == (503, "quota_store_unavailable")
    assert await used(served, "tokens_per_day") == (9, 0)


def has(made: list[int], tokens: int) -> bool:
    return len(made) == tokens


async def test_a_client_that_goes_at_any_token_is_charged_what_was_published(served: Served) -> None:
    await served.tenant(limits={"tokens_per_day": 10_000, "tokens_per_minute": 10_000})
    headers = {"authorization": f"Bearer {served.keys['acme']}"}
    for tokens in range(1, 24):
        served.worker.limit = tokens
        body = {**ENDLESS, "max_tokens": 40, "stream": True}
        async with served.http as client, client.stream("POST", COMPLETIONS, json=body, headers=headers) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            made = served.worker.produced[served.worker.seen[-1].job.job_id]
            await until(partial(has, made, tokens))
        await served.landed()

    await until(lambda: not served.resources.accounts.pools.count)  # their rights count as reserved
    published = [len(made) for made in served.worker.produced.values()]
    charged = [output for _, _, output in await served.ledger()]
    assert sorted(charged) == sorted(published) == list(range(1, 24))
    assert await used(served, "tokens_per_day") == (sum(published) + len(published), 0)
    assert await used(served, "tokens_per_minute") == (sum(published) + len(published), 0)
