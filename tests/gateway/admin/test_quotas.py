"""A tenant's limits through the admin API."""

from typing import Any

import pytest

from fairlane.quotas.store import Denied, Need
from tests.support.gateway.admin_app import AdminBench, ask

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
async def acme(bench: AdminBench) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme", "limits": {"tokens_per_day": 100}})


def figures(quota: dict[str, Any]) -> dict[str, int]:
    return {name: limit["limit"] for name, limit in quota["limits"].items()}


async def test_the_quota_says_what_is_used_reserved_and_left(bench: AdminBench) -> None:
    await bench.spend("acme", prompt=10, output=5)

    quota = await bench.done("GET", "/tenants/acme/quota")

    limit = quota["limits"]["tokens_per_day"]
    assert (limit["limit"], limit["used"], limit["reserved"], limit["remaining"]) == (100, 15, 0, 85)
    assert limit["resets_at"] > 1.7e9
    assert quota["limits"].keys() == {"tokens_per_day"}


@pytest.mark.parametrize("wrapped", [True, False])
async def test_a_merge_keeps_what_it_does_not_name(bench: AdminBench, wrapped: bool) -> None:
    limits = {"requests_per_minute": 5}

    changed = await bench.done("PATCH", "/tenants/acme/quota", json={"limits": limits} if wrapped else limits)

    assert figures(changed) == {"requests_per_minute": 5, "tokens_per_day": 100}


@pytest.mark.parametrize("wrapped", [True, False])
async def test_a_replacement_keeps_nothing_else(bench: AdminBench, wrapped: bool) -> None:
    limits = {"requests_per_minute": 5, "concurrent_requests": None}

    replaced = await bench.done("PUT", "/tenants/acme/quota", json={"limits": limits} if wrapped else limits)

    assert figures(replaced) == {"requests_per_minute": 5}
    assert (await bench.done("GET", "/tenants/acme"))["limits"] == {"requests_per_minute": 5}


async def test_null_takes_a_limit_away(bench: AdminBench) -> None:
    changed = await bench.done("PATCH", "/tenants/acme/quota", json={"tokens_per_day": None})

    assert changed == {"limits": {}}


async def test_a_limit_of_nothing_is_a_limit(bench: AdminBench) -> None:
    changed = await bench.done("PATCH", "/tenants/acme/quota", json={"tokens_per_day": 0})

    assert changed["limits"]["tokens_per_day"]["remaining"] == 0


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"tokens_per_eon": 1}, "tokens_per_eon"),
        ({"tokens_per_day": -1}, "tokens_per_day"),
        ({"tokens_per_day": 0.5}, "tokens_per_day"),
        ({"tokens_per_day": 10**15 + 1}, "tokens_per_day"),
        ({"limits": {"tokens_per_day": 1}, "extra": 1}, "extra"),
        ({"limits": None}, "limits"),
        ({}, "limits"),
    ],
)
async def test_a_wrong_limit_is_named_and_changes_nothing(
    bench: AdminBench, method: str, body: dict[str, Any], name: str
) -> None:
    status, code, param = await bench.refused(method, "/tenants/acme/quota", json=body)

    assert (status, code) == (400, "invalid_request_error")
    assert str(param).split(".")[-1] == name
    assert figures(await bench.done("GET", "/tenants/acme/quota")) == {"tokens_per_day": 100}


async def test_what_waits_is_used_of_the_queue(bench: AdminBench) -> None:
    await bench.done("PATCH", "/tenants/acme/quota", json={"queued_requests": 5})
    bench.fleet.queued = {"acme": 3, "other": 4}

    limit = (await bench.done("GET", "/tenants/acme/quota"))["limits"]["queued_requests"]

    assert (limit["used"], limit["remaining"]) == (3, 2)


async def test_the_quota_is_the_tenant_s_own(bench: AdminBench) -> None:
    by = [{"lane": "latency", "limits": {"tokens_per_day": 1}}]
    body = {"id": "web", "parent": "acme", "limits": {"tokens_per_day": 200}, "limits_by": by}
    await bench.done("POST", "/tenants", json=body)

    quota = await bench.done("GET", "/tenants/web/quota")

    assert [(limit["limit"], limit["scope"]) for limit in quota["limits"].values()] == [(200, "tenant")]


async def test_a_limit_below_what_is_in_use_holds_at_once(bench: AdminBench) -> None:
    await bench.spend("acme", prompt=30, output=10)
    await bench.budgets.reserve(ask("acme", "running", prompts=(10,), max_output_tokens=40, quantum=5))

    lowered = await bench.done("PATCH", "/tenants/acme/quota", json={"tokens_per_day": 20})

    limit = lowered["limits"]["tokens_per_day"]
    assert (limit["limit"], limit["used"], limit["reserved"], limit["remaining"]) == (20, 40, 15, 0)
    with pytest.raises(Denied):
        await bench.budgets.reserve(ask("acme", "new", prompts=(1,), max_output_tokens=1))
    more = await bench.budgets.extend(
        "acme", "running", Need(published=3, prompt_tokens=10, known=5, most=40, quantum=5)
    )
    assert (more.granted_tokens, more.limited_by) == (5, "tokens_per_day")


async def test_a_limit_in_shadow_says_so(bench: AdminBench) -> None:
    before = await bench.done("GET", "/tenants/acme/quota")
    await bench.done("PATCH", "/tenants/acme", json={"shadow": ["tokens_per_day"]})

    after = await bench.done("GET", "/tenants/acme/quota")

    assert [quota["limits"]["tokens_per_day"]["shadow"] for quota in (before, after)] == [False, True]


async def test_the_audit_log_says_what_was_and_what_is(bench: AdminBench) -> None:
    await bench.done("PATCH", "/tenants/acme/quota", json={"tokens_per_day": 7})
    await bench.done("PATCH", "/tenants/acme/quota", json={"tokens_per_day": 7})

    _, changed = await bench.audit()

    assert changed["action"] == "quota.update"
    assert changed["target"] == "acme"
    assert changed["changes"] == {
        "before": {"limits": {"tokens_per_day": 100}},
        "after": {"limits": {"tokens_per_day": 7}},
    }
