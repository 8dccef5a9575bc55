"""Every limit at every level refuses what passes it, by name, or cannot be stored: none is there for show (A8)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from fairlane.quotas.limits import BATCH_LIMIT, LIMIT_NAMES
from tests.support.gateway.served import ADMIN_KEY, COMPLETIONS, WAIT_S, Served, serving, settings, until

pytestmark = pytest.mark.anyio

TEN = {"model": "tiny", "prompt": [5], "max_tokens": 9, "ignore_eos": True}
"""One token in, nine out."""
Refusal = tuple[int, str, str, str]
"""Status, code, the limit's name and its scope."""

AFTER: dict[str, tuple[int, dict[str, Any], int, str]] = {
    "requests_per_minute": (1, TEN, 429, "rate_limit_exceeded"),
    "tokens_per_minute": (10, TEN, 429, "rate_limit_exceeded"),
    "input_tokens_per_minute": (1, TEN, 429, "rate_limit_exceeded"),
    "output_tokens_per_minute": (9, TEN, 429, "rate_limit_exceeded"),
    "tokens_per_day": (10, TEN, 429, "insufficient_quota"),
    "tokens_per_month": (10, TEN, 429, "insufficient_quota"),
    "spend_per_day": (10, TEN, 429, "insufficient_quota"),
    "spend_per_month": (10, TEN, 429, "insufficient_quota"),
    "max_prompt_tokens": (1, {**TEN, "prompt": [5, 6]}, 400, "request_exceeds_limit"),
    "max_output_tokens": (9, {**TEN, "max_tokens": 10}, 400, "request_exceeds_limit"),
}
"""By limit: a figure that lets TEN in once, what is then asked, and how that is refused."""
WHILE = {"concurrent_requests": "concurrency_limit_exceeded", "queued_requests": "queue_full"}
"""By limit of one: how a second request is refused while the first waits."""
LEVELS = ("tenant", "key", "model_lane", "parent")
NOT_STORED = {("model_lane", "queued_requests")}
OF_ITS_OWN = {("parent", "queued_requests")}
"""Counts the parent's own requests, as docs/tenants-and-budgets.md says."""


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url)) as opened:
        prices = [{"input": 1, "output": 1}]
        assert (await admin(opened, "PUT", "/prices", {"prices": prices})).is_success
        yield opened


async def admin(served: Served, method: str, path: str, body: Any) -> httpx.Response:
    async with served.http as client:
        return await client.request(
            method, f"/admin/v1{path}", json=body, headers={"authorization": f"Bearer {ADMIN_KEY}"}
        )


async def limited(served: Served, level: str, name: str, figure: int) -> str:
    """A tenant with one limit at one level, through the admin API; the tenant."""
    tenant, limits, extra = f"{level}.{name}", {name: figure}, dict[str, Any]()
    if level == "parent":
        assert (await admin(served, "POST", "/tenants", {"id": f"above.{name}", "limits": limits})).is_success
        extra = {"parent": f"above.{name}"}
    elif level == "model_lane":
        extra = {"limits_by": [{"model": "tiny", "lane": "latency", "limits": limits}]}
    elif level == "tenant":
        extra = {"limits": limits}
    made = await admin(served, "POST", "/tenants", {"id": tenant, "reserve": "full", **extra})
    assert made.is_success, made.text
    of_key = limits if level == "key" else {}
    key = await admin(served, "POST", f"/tenants/{tenant}/keys", {"name": "test", "limits": of_key})
    assert key.is_success, key.text
    served.keys[tenant] = key.json()["key"]
    return tenant


def told(answer: httpx.Response) -> Refusal:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["limit"]["name"], error["limit"]["scope"]


def test_no_limit_is_left_out() -> None:
    assert {*AFTER, *WHILE, BATCH_LIMIT} == set(LIMIT_NAMES)  # of batches alone: tests/gateway/batches


@pytest.mark.parametrize("level", LEVELS)
async def test_a8_a_spent_limit_refuses_at_every_level(served: Served, level: str) -> None:
    """Elsewhere a request passed if any bucket had room, and limits that were accepted did nothing."""
    found: dict[str, Refusal] = {}

    for name, (figure, body, _, _) in AFTER.items():
        tenant = await limited(served, level, name, figure)
        assert (await served.post(COMPLETIONS, TEN, tenant=tenant)).status_code == 200
        found[name] = told(await served.post(COMPLETIONS, body, tenant=tenant))

    assert found == {name: (status, code, name, level) for name, (_, _, status, code) in AFTER.items()}


@pytest.mark.parametrize("level", LEVELS)
async def test_a8_a_taken_place_refuses_at_every_level(served: Served, level: str) -> None:
    found: dict[str, Refusal] = {}
    served.worker.taking = False

    for name in WHILE:
        if (level, name) not in NOT_STORED | OF_ITS_OWN:
            tenant = await limited(served, level, name, 1)
            waiting = asyncio.create_task(served.post(COMPLETIONS, TEN, tenant=tenant))
            await until(lambda: any(job.message for job in served.resources.fleet.dispatcher.jobs.values()))
            await wait_in_queue(served, tenant)
            found[name] = told(await served.post(COMPLETIONS, TEN, tenant=tenant))
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await served.landed()

    enforced = {name: code for name, code in WHILE.items() if (level, name) not in NOT_STORED | OF_ITS_OWN}
    assert found == {name: (429, code, name, level) for name, code in enforced.items()}


async def wait_in_queue(served: Served, tenant: str, count: int = 1) -> None:
    """Until so many of a tenant's requests wait."""
    async with asyncio.timeout(WAIT_S):
        while await served.worker.queue.waiting(tenant) != count:  # noqa: ASYNC110 - polled: the store says no more
            await asyncio.sleep(0.005)


async def test_a_parents_queue_counts_its_own_requests(served: Served) -> None:
    child = await limited(served, "parent", "queued_requests", 1)
    parent = "above.queued_requests"
    key = await admin(served, "POST", f"/tenants/{parent}/keys", {"name": "test"})
    served.keys[parent] = key.json()["key"]
    served.worker.taking = False

    waiting = [asyncio.create_task(served.post(COMPLETIONS, TEN, tenant=each)) for each in (child, child, parent)]
    await wait_in_queue(served, child, 2)
    await wait_in_queue(served, parent)
    refused = await served.post(COMPLETIONS, TEN, tenant=parent)
    served.worker.taking = True

    assert told(refused) == (429, "queue_full", "queued_requests", "tenant")
    assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200, 200, 200]


async def test_a_keys_queue_is_its_tenants_and_the_tightest_binds(served: Served) -> None:
    tenant = await limited(served, "tenant", "queued_requests", 3)
    tight = await admin(served, "POST", f"/tenants/{tenant}/keys", {"name": "t", "limits": {"queued_requests": 2}})
    wide = served.keys[tenant]
    served.worker.taking = False

    waiting = [asyncio.create_task(served.post(COMPLETIONS, TEN, tenant=tenant)) for _ in range(2)]
    await wait_in_queue(served, tenant, 2)
    served.keys[tenant] = tight.json()["key"]
    by_key = await served.post(COMPLETIONS, TEN, tenant=tenant)
    shown = (await served.get("/v1/limits", tenant=tenant)).json()["limits"]["queued_requests"]
    served.keys[tenant] = wide
    waiting.append(asyncio.create_task(served.post(COMPLETIONS, TEN, tenant=tenant)))
    await wait_in_queue(served, tenant, 3)
    by_tenant = await served.post(COMPLETIONS, TEN, tenant=tenant)
    served.worker.taking = True

    assert (told(by_key)[3], told(by_tenant)[3]) == ("key", "tenant")
    assert (shown["scope"], shown["limit"], shown["used"], shown["remaining"]) == ("key", 2, 2, 0)
    limits = [answer.json()["error"]["limit"] for answer in (by_key, by_tenant)]
    assert [(limit["limit"], limit["used"]) for limit in limits] == [(2, 2), (3, 3)]
    assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200, 200, 200]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"limits_by": [{"model": "tiny", "limits": {"queued_requests": 1}}]}, "limits_by.0.limits.queued_requests"),
        ({"limits_by": [{"lane": "express", "limits": {"tokens_per_day": 1}}]}, "limits_by.[0].lane"),
        ({"limits_by": [{"limits": {"tokens_per_day": 1}}]}, "limits_by.0"),
        ({"limits_by": [{"model": "", "limits": {"tokens_per_day": 1}}]}, "limits_by.[0].model"),
        ({"limits_by": [{"model": "tiny", "user": "eve", "limits": {}}]}, "limits_by.[0].user"),
        ({"limits_by": [{"model": "tiny", "header": "x-user", "limits": {}}]}, "limits_by.[0].header"),
        ({"limits": {"serviceQuota": 1}}, "limits.serviceQuota"),
        ({"limits": {"requests_per_hour": 1}}, "limits.requests_per_hour"),
        ({"shadow": ["requests_per_hour"]}, "shadow.[0]"),
    ],
)
async def test_a8_a_selector_or_limit_that_nothing_would_enforce_is_not_stored(
    served: Served, body: dict[str, Any], param: str
) -> None:
    answer = await admin(served, "POST", "/tenants", {"id": "acme", **body})

    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_request_error")
    assert error["param"] == param
    assert (await admin(served, "GET", "/tenants/acme", None)).status_code == 404


async def test_what_a_limit_in_shadow_would_have_refused_is_counted(served: Served) -> None:
    limits = {"requests_per_minute": 1, "max_prompt_tokens": 1, "tokens_per_day": 100_000}
    await served.tenant("quiet", limits=limits, shadow=[*limits])
    answers = [await served.post(COMPLETIONS, {**TEN, "prompt": [5, 6]}, tenant="quiet") for _ in range(3)]

    told = served.resources.telemetry.exposition().decode()
    assert {answer.status_code for answer in answers} == {200}
    name = 'fairlane_gateway_shadow_refusals_total{limit="%s",tenant="quiet"} %s'
    assert name % ("requests_per_minute", 2.0) in told
    assert name % ("max_prompt_tokens", 3.0) in told
    assert 'limit="tokens_per_day"' not in told


async def test_a_changed_zone_gives_no_spent_day_back(served: Served) -> None:
    tenant = await limited(served, "tenant", "tokens_per_day", 10)
    assert (await served.post(COMPLETIONS, TEN, tenant=tenant)).status_code == 200
    before = (await served.get("/v1/limits", tenant=tenant)).json()

    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago", "Asia/Kolkata"):  # at least one has another date now
        assert (await admin(served, "PATCH", f"/tenants/{tenant}", {"timezone": zone})).is_success
        refused = await served.post(COMPLETIONS, TEN, tenant=tenant)
        assert told(refused) == (429, "insufficient_quota", "tokens_per_day", "tenant")
        assert (await served.get("/v1/limits", tenant=tenant)).json()["limits"] == before["limits"]
