"""What a tenant is refused: each with its code, its limit, a time to retry, and nothing charged or counted."""

import asyncio

import pytest

from fairlane.scheduler.protocol.settings import LaneSettings, LanesSettings
from tests.support.gateway.served import ASKED, CHAT, COMPLETIONS, Served, error_of, gateway, serving, settings, until
from tests.support.scheduler.admitted import BEST_EFFORT, PROMISED, WORKERS

pytestmark = pytest.mark.anyio

ONE_TOKEN = {"model": "tiny", "prompt": [5], "max_tokens": 9, "ignore_eos": True}


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    return fresh_gateway


async def used(served: Served, name: str) -> tuple[int, int]:
    """Used and reserved of one limit."""
    status = (await served.limits())[name]
    return status.used, status.reserved


@pytest.mark.parametrize(
    ("limits", "code", "scope"),
    [
        ({"requests_per_minute": 1}, "rate_limit_exceeded", "tenant"),
        ({"tokens_per_minute": 10}, "rate_limit_exceeded", "tenant"),
        ({"tokens_per_day": 10}, "insufficient_quota", "tenant"),
        ({"tokens_per_month": 10}, "insufficient_quota", "tenant"),
    ],
)
async def test_a_spent_limit_names_itself_and_a_time(
    served: Served, limits: dict[str, int], code: str, scope: str
) -> None:
    await served.tenant(limits=limits)
    assert (await served.post(COMPLETIONS, ONE_TOKEN)).status_code == 200
    before = await served.limits()

    refused = await served.post(COMPLETIONS, ONE_TOKEN)

    assert refused.status_code == 429
    error = refused.json()["error"]
    assert error["code"] == code
    assert (error["limit"]["name"], error["limit"]["scope"]) == (next(iter(limits)), scope)
    assert int(refused.headers["retry-after"]) >= 1
    assert float(refused.headers["retry-after-ms"]) > 0
    assert refused.headers.get("x-should-retry") == ("false" if code == "insufficient_quota" else None)
    assert refused.headers["x-request-id"].startswith("req_")
    after = await served.limits()
    assert {name: (s.used, s.reserved) for name, s in after.items()} == {
        name: (s.used, s.reserved) for name, s in before.items()
    }


async def test_what_the_quota_refuses_leaves_nothing_at_the_door(served: Served) -> None:
    await served.tenant(limits={"tokens_per_minute": 9})
    door = served.resources.fleet.open_requests.at(served.worker.queue.name)

    answer = await served.post(COMPLETIONS, {**ONE_TOKEN, "prompt": [[5], [6], [7]]})
    door.look(WORKERS, served.resources.fleet.open_requests.now_ms)

    assert answer.status_code == 400
    assert [door.ledger.at(level).loads for level in (PROMISED, BEST_EFFORT)] == [0, 0]


async def test_what_the_quota_refuses_leaves_nothing_in_the_store(served: Served) -> None:
    await served.tenant(limits={"tokens_per_minute": 9})
    before = set(await served.store.keys())

    refused = [await served.post(COMPLETIONS, {**ONE_TOKEN, "max_tokens": 9}) for _ in range(3)]

    assert {answer.status_code for answer in refused} == {400}
    assert not [key for key in set(await served.store.keys()) - before if b"reservation:" in key]


async def test_what_could_never_fit_is_not_worth_a_retry(served: Served) -> None:
    await served.tenant(limits={"tokens_per_minute": 9})

    refused = await served.post(COMPLETIONS, ONE_TOKEN)

    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "request_exceeds_limit"
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers


@pytest.mark.parametrize(
    ("limits", "path", "asked", "param"),
    [
        ({"tokens_per_minute": 100}, CHAT, {"max_tokens": 110}, "max_tokens"),
        ({"tokens_per_minute": 100}, CHAT, {"max_completion_tokens": 110}, "max_completion_tokens"),
        ({"tokens_per_minute": 9}, CHAT, {"max_tokens": 5}, "messages"),  # the prompt alone is too long
        ({"tokens_per_minute": 9}, CHAT, {}, "messages"),
        ({"tokens_per_day": 100}, COMPLETIONS, {"max_tokens": 110}, "max_tokens"),
        ({"output_tokens_per_minute": 100}, CHAT, {"max_tokens": 110}, "max_tokens"),
        ({"max_output_tokens": 5}, COMPLETIONS, {"max_tokens": 6}, "max_tokens"),
        ({"input_tokens_per_minute": 1}, CHAT, {}, "messages"),
        ({"max_prompt_tokens": 1}, CHAT, {}, "messages"),
        ({"max_prompt_tokens": 1}, COMPLETIONS, {}, "prompt"),
        ({"requests_per_minute": 0}, CHAT, {}, None),
    ],
)
async def test_what_could_never_fit_names_the_field_to_shorten(
    served: Served, limits: dict[str, int], path: str, asked: dict[str, int], param: str | None
) -> None:
    await served.tenant(limits=limits)
    body = ASKED if path == CHAT else {"model": "tiny", "prompt": [5, 6]}

    refused = await served.post(path, {**body, **asked})

    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, "request_exceeds_limit", param)
    assert error["limit"]["name"] == next(iter(limits))


async def test_concurrent_requests_are_capped_and_freed(served: Served) -> None:
    await served.tenant(limits={"concurrent_requests": 1})
    served.worker.limit = 1
    first = asyncio.create_task(served.post(COMPLETIONS, ONE_TOKEN))
    await until(lambda: bool(served.worker.leases))

    refused = await served.post(COMPLETIONS, ONE_TOKEN)
    served.worker.limit = None

    assert refused.json()["error"]["code"] == "concurrency_limit_exceeded"
    assert (await first).status_code == 200
    assert (await served.post(COMPLETIONS, ONE_TOKEN)).status_code == 200


async def test_the_tenants_queue_is_capped_and_a_refusal_counts_nothing(served: Served) -> None:
    await served.tenant(limits={"queued_requests": 1, "requests_per_minute": 100})
    served.worker.taking = False
    waiting = asyncio.create_task(served.post(COMPLETIONS, ONE_TOKEN))
    await until(lambda: any(job.message for job in served.resources.fleet.dispatcher.jobs.values()))

    refused = await served.post(COMPLETIONS, ONE_TOKEN)
    await until(lambda: len(served.resources.fleet.dispatcher.jobs) == 1)
    counted = await used(served, "requests_per_minute")
    told = (await served.get("/v1/limits")).json()["limits"]["queued_requests"]
    served.worker.taking = True

    assert (told["used"], told["remaining"]) == (1, 0)
    assert refused.json()["error"]["code"] == "queue_full"
    assert refused.json()["error"]["limit"]["name"] == "queued_requests"
    assert "retry-after" in refused.headers
    assert sum(counted) == 1
    assert (await waiting).status_code == 200


@pytest.mark.parametrize("of_key", [False, True])
async def test_a_queue_without_places_refuses_without_a_retry_time(served: Served, of_key: bool) -> None:
    limits = {"queued_requests": 0}
    await served.tenant(limits={} if of_key else limits)
    if of_key:
        tenant = await served.resources.accounts.tenants.get(served.id_of())
        assert tenant is not None
        served.keys["acme"] = (
            await served.resources.accounts.keys.create(tenant, {"name": "k", "limits": limits})
        ).secret

    refused = await served.post(COMPLETIONS, ONE_TOKEN)

    assert error_of(refused) == (429, "queue_full")
    assert refused.headers["x-should-retry"] == "false"
    assert not {"retry-after", "retry-after-ms"} & set(refused.headers)


async def test_a_lane_that_the_tenant_may_not_use_is_refused_by_header_and_replaced_by_tier(served: Served) -> None:
    await served.tenant(lanes=["throughput"], default_lane="throughput")

    strict = await served.post(CHAT, ASKED, x_fairlane_lane="latency")
    served_anyway = await served.post(CHAT, {**ASKED, "service_tier": "priority"})

    assert strict.status_code == 403
    assert strict.json()["error"]["code"] == "lane_not_allowed"
    assert served_anyway.headers["x-fairlane-lane"] == "throughput"
    assert served_anyway.json()["service_tier"] == "default"


async def test_keys_fail_as_401_and_suspended_tenants_as_403(served: Served) -> None:
    await served.tenant()
    served.keys["stranger"] = "fl-nobody-nothing"
    assert (await served.post(CHAT, ASKED, tenant="stranger")).json()["error"]["code"] == "invalid_api_key"
    assert (await served.post(CHAT, ASKED)).status_code == 200

    await served.resources.accounts.tenants.suspend(served.id_of("acme"))
    refused = await served.post(CHAT, ASKED)  # the budget knows at once, whatever the gateway remembers of the key

    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "tenant_suspended"


async def test_limits_stand_in_the_headers_of_every_answer(served: Served) -> None:
    await served.tenant(limits={"requests_per_minute": 10, "tokens_per_minute": 1_000})

    for answer in (await served.post(COMPLETIONS, ONE_TOKEN), await served.post(CHAT, b"{")):
        assert answer.headers["x-ratelimit-limit-requests"] == "10"
        assert answer.headers["x-ratelimit-remaining-requests"] == "9"
        assert answer.headers["x-ratelimit-limit-tokens"] == "1000"
        assert answer.headers["x-ratelimit-remaining-tokens"] == "990"
        assert answer.headers["x-ratelimit-reset-requests"].endswith("s")
    assert (await served.get("/v1/limits")).json()["limits"]["tokens_per_minute"]["used"] == 10


async def test_limits_stand_on_what_a_recognised_key_is_refused_at_the_rim(served: Served) -> None:
    limits = {"requests_per_minute": 10}
    await served.tenant("suspended", limits=limits)
    await served.resources.accounts.tenants.suspend(served.id_of("suspended"))
    await served.tenant("elsewhere", limits=limits, scopes={"cidrs": ["10.0.0.0/8"]})
    await served.tenant("chatter", limits=limits, scopes={"endpoints": [CHAT]})

    codes = {
        "suspended": "tenant_suspended",
        "elsewhere": "address_not_allowed",
        "chatter": "endpoint_not_allowed",
    }
    for name, code in codes.items():
        answer = await served.get("/v1/models", tenant=name)
        assert error_of(answer) == (403, code)
        assert answer.headers["x-ratelimit-remaining-requests"] == "10"


@pytest.mark.parametrize("asked", [{"max_tokens": 100, "stop": ["France"]}, {}])
async def test_a_plain_answer_tells_the_limits_as_they_are_after_it(served: Served, asked: dict[str, object]) -> None:
    await served.tenant(limits={"tokens_per_minute": 500})

    answer = await served.post(CHAT, {**ASKED, **asked})

    status = (await served.limits())["tokens_per_minute"]
    assert status.used == answer.json()["usage"]["total_tokens"]
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) == 500 - status.used


async def test_a_full_lane_is_overloaded_and_counts_nothing(valkey_url: str) -> None:
    lanes = LanesSettings(latency=LaneSettings(max_queued=1))
    async with serving(settings(valkey_url, lanes=lanes)) as served:
        await served.tenant(limits={"requests_per_minute": 100})
        served.worker.taking = False
        waiting = asyncio.create_task(served.post(COMPLETIONS, ONE_TOKEN))
        await until(lambda: any(job.message for job in served.resources.fleet.dispatcher.jobs.values()))

        refused = await served.post(COMPLETIONS, ONE_TOKEN)
        counted = await used(served, "requests_per_minute")
        served.worker.taking = True

        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "overloaded"
        assert int(refused.headers["retry-after"]) >= 1
        assert sum(counted) == 1
        assert (await waiting).status_code == 200


async def test_without_a_worker_requests_are_503_and_the_gateway_is_not_ready(valkey_url: str) -> None:
    async with gateway(settings(valkey_url)) as served:
        await served.tenant()
        async with served.http as client:
            ready, alive = await client.get("/readyz"), await client.get("/healthz")

        assert ready.status_code == 503
        assert alive.status_code == 200
        assert (await served.post(CHAT, ASKED)).status_code in (404, 503)


async def test_a_key_s_limits_are_those_of_its_tenant_s_line(served: Served) -> None:
    await served.tenant("holding", limits={"tokens_per_day": 100_000, "concurrent_requests": 5})
    await served.tenant(
        "web", parent=served.id_of("holding"), limits={"tokens_per_day": 200_000, "requests_per_minute": 5}
    )

    answer = (await served.get("/v1/limits", tenant="web")).json()

    shown = {name: (limit["limit"], limit["scope"]) for name, limit in answer["limits"].items()}
    assert shown == {
        "tokens_per_day": (100_000, "parent"),
        "requests_per_minute": (5, "tenant"),
        "concurrent_requests": (5, "parent"),
    }
