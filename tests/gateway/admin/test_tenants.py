"""Tenants through the admin API: made, changed, suspended, deleted; what is wrong changes nothing."""

from functools import partial
from typing import Any

import anyio
import pytest

from fairlane.gateway.control.admin import tenants as admin_tenants
from fairlane.gateway.control.admin.inputs import TenantChange
from tests.support.gateway.admin_app import AdminBench

pytestmark = pytest.mark.anyio


async def test_a_tenant_is_made_with_defaults(bench: AdminBench) -> None:
    answer = await bench.call("POST", "/tenants", json={"id": "acme"})

    made = answer.json()
    assert answer.status_code == 201
    assert made["lanes"] == ["latency", "throughput"]
    assert made["timezone"] == "UTC"
    assert made["weight"] == 1.0
    assert made["models"] is None
    assert made["limits"] == {}
    assert made["state"] == "active"
    assert await bench.done("GET", "/tenants/acme") == made


async def test_every_field_that_is_stated_is_kept(bench: AdminBench) -> None:
    stated = {
        "id": "acme",
        "name": "Acme, Inc.",
        "timezone": "Europe/Berlin",
        "weight": 2.5,
        "default_lane": "throughput",
        "lanes": ["throughput"],
        "models": ["tiny"],
        "limits": {"tokens_per_day": 1000, "concurrent_requests": 3},
        "limits_by": [
            {"model": "tiny", "lane": "latency", "limits": {"tokens_per_minute": 50}},
            {"model": "tiny", "lane": None, "limits": {"concurrent_requests": 1}},
            {"model": None, "lane": "throughput", "limits": {}},
        ],
        "shadow": ["tokens_per_day"],
        "reserve": "full",
        "preemption": "exact",
        "share_group": "family",
    }

    made = await bench.done("POST", "/tenants", json=stated)

    assert stated.items() <= made.items()


async def test_null_asks_for_the_default_of_any_field(bench: AdminBench) -> None:
    plain = await bench.done("POST", "/tenants", json={"id": "plain"})
    nulls = dict.fromkeys(TenantChange.model_fields)

    made = await bench.done("POST", "/tenants", json={"id": "acme", **nulls})

    own = ("id", "created_at")
    assert {**made, **dict.fromkeys(own)} == {**plain, **dict.fromkeys(own)}


async def test_a_tenant_below_another_names_it(bench: AdminBench) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme"})

    made = await bench.done("POST", "/tenants", json={"id": "web", "parent": "acme"})

    assert made["parent"] == "acme"
    assert (await bench.done("PATCH", "/tenants/web", json={"parent": "acme", "name": "Web"}))["name"] == "Web"


@pytest.mark.parametrize("parent", [None, "web", "other", "nobody"])
async def test_a_parent_never_changes(bench: AdminBench, parent: str | None) -> None:
    for body in ({"id": "acme"}, {"id": "other"}, {"id": "web", "parent": "acme"}):
        await bench.done("POST", "/tenants", json=body)

    refused = await bench.refused("PATCH", "/tenants/web", json={"parent": parent})

    assert refused == (400, "invalid_request_error", "parent")
    assert (await bench.done("GET", "/tenants/web"))["parent"] == "acme"


async def test_a_tenant_with_others_below_it_is_deleted_after_them(bench: AdminBench) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme"})
    await bench.done("POST", "/tenants", json={"id": "web", "parent": "acme"})

    assert await bench.refused("DELETE", "/tenants/acme") == (409, "tenant_has_children", None)
    assert [entry["action"] for entry in await bench.audit()] == ["tenant.create", "tenant.create"]
    await bench.done("DELETE", "/tenants/web")
    await bench.done("DELETE", "/tenants/acme")


async def test_limits_by_model_are_replaced_whole(bench: AdminBench) -> None:
    by = [{"model": "tiny", "limits": {"tokens_per_day": 5}}, {"lane": "latency", "limits": {"tokens_per_day": 7}}]
    await bench.done("POST", "/tenants", json={"id": "acme", "limits_by": by})

    kept = await bench.done("PATCH", "/tenants/acme", json={"name": "A"})
    replaced = await bench.done("PATCH", "/tenants/acme", json={"limits_by": by[1:]})
    cleared = await bench.done("PATCH", "/tenants/acme", json={"limits_by": None})

    assert [len(tenant["limits_by"]) for tenant in (kept, replaced, cleared)] == [2, 1, 0]
    assert replaced["limits_by"] == [{"model": None, "lane": "latency", "limits": {"tokens_per_day": 7}}]


async def test_a_tenant_that_exists_is_not_made_again(bench: AdminBench) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme", "weight": 3})

    assert await bench.refused("POST", "/tenants", json={"id": "acme"}) == (409, "already_exists", "id")
    assert (await bench.done("GET", "/tenants/acme"))["weight"] == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "id"),
        ({"id": ""}, "id"),
        ({"id": "has space"}, "id"),
        ({"id": "../up"}, "id"),
        ({"id": "{tag}"}, "id"),
        ({"id": "a" * 64}, "id"),
        ({"id": 7}, "id"),
        ({"color": "red"}, "color"),
        ({"weight": 0}, "weight"),
        ({"weight": -1}, "weight"),
        ({"weight": "1"}, "weight"),
        ({"weight": True}, "weight"),
        ({"weight": 1e300}, "weight"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"timezone": "../../etc/passwd"}, "timezone"),
        ({"default_lane": "slow"}, "default_lane"),
        ({"default_lane": "latency", "lanes": ["throughput"]}, "default_lane"),
        ({"lanes": []}, "lanes"),
        ({"lanes": ["slow"]}, "lanes.[0]"),
        ({"models": "tiny"}, "models"),
        ({"models": [1]}, "models.[0]"),
        ({"limits": {"tokens_per_year": 1}}, "limits.tokens_per_year"),
        ({"limits": {"tokens_per_day": -1}}, "limits.tokens_per_day"),
        ({"limits": {"tokens_per_day": 1.5}}, "limits.tokens_per_day"),
        ({"limits": {"tokens_per_day": "5"}}, "limits.tokens_per_day"),
        ({"limits": {"tokens_per_day": True}}, "limits.tokens_per_day"),
        ({"limits": {"tokens_per_day": 10**16}}, "limits.tokens_per_day"),
        ({"limits": []}, "limits"),
        ({"limits_by": {}}, "limits_by"),
        ({"limits_by": ["tiny"]}, "limits_by.[0]"),
        ({"limits_by": [{"limits": {}}]}, "limits_by.0"),
        ({"limits_by": [{"model": "tiny"}]}, "limits_by.[0].limits"),
        ({"limits_by": [{"model": "", "limits": {}}]}, "limits_by.[0].model"),
        ({"limits_by": [{"model": "bell\u0007", "limits": {}}]}, "limits_by.0.model"),
        ({"limits_by": [{"lane": "slow", "limits": {}}]}, "limits_by.[0].lane"),
        ({"limits_by": [{"lane": "latency", "limits": {"tokens_per_day": -1}}]}, "limits_by.[0].limits.tokens_per_day"),
        ({"limits_by": [{"lane": "latency", "limits": {"queued_requests": 1}}]}, "limits_by.0.limits.queued_requests"),
        ({"limits_by": [{"lane": "latency", "limits": {}}] * 2}, "limits_by"),
        ({"limits_by": [{"model": f"m{n}", "limits": {}} for n in range(65)]}, "limits_by"),
        ({"parent": "acme"}, "parent"),
        ({"parent": ""}, "parent"),
        ({"parent": 7}, "parent"),
        ({"parent": "umbrella"}, "parent"),
        ({"shadow": ["everything"]}, "shadow.[0]"),
        ({"reserve": "never"}, "reserve"),
        ({"preemption": "rude"}, "preemption"),
    ],
)
async def test_what_is_wrong_is_named_and_nothing_is_made(
    bench: AdminBench, fields: dict[str, Any], param: str
) -> None:
    body = fields if "id" in fields or not fields else {"id": "acme", **fields}

    assert await bench.refused("POST", "/tenants", json=body) == (400, "invalid_request_error", param)
    assert (await bench.done("GET", "/tenants"))["data"] == []
    assert await bench.audit() == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", "id"),
        (b"[]", None),
        (b"{", None),
        (b'{"id": "a", "id": "b"}', "id"),
        (b'{"id": "a", "weight": NaN}', "weight"),
        (b'{"id": "a", "weight": 1e309}', "weight"),
        (b'{"id": "a", "limits": {"tokens_per_day": Infinity}}', "limits.tokens_per_day"),
        (b'{"id": "\xff"}', "id"),
        (b'{"id": "\\ud800"}', "id"),
        (b'{"id": "a", "name": "\\ud800"}', "name"),
        (b'{"id": "a", "models": ["\\udfff"]}', "models.[0]"),
        (b'{"id": ' + b"[" * 5000 + b"]" * 5000 + b"}", "id"),
    ],
)
async def test_a_body_that_is_no_honest_json_is_refused(bench: AdminBench, body: bytes, param: str | None) -> None:
    assert await bench.refused("POST", "/tenants", content=body) == (400, "invalid_request_error", param)


async def test_a_change_merges_and_null_is_the_default(bench: AdminBench) -> None:
    limits = {"tokens_per_day": 100, "requests_per_minute": 5}
    await bench.done("POST", "/tenants", json={"id": "acme", "weight": 4, "models": ["tiny"], "limits": limits})

    changed = await bench.done(
        "PATCH",
        "/tenants/acme",
        json={"weight": None, "models": None, "name": "A", "limits": {"requests_per_minute": None}},
    )

    assert changed["weight"] == 1.0
    assert changed["models"] is None
    assert changed["name"] == "A"
    assert changed["limits"] == {"tokens_per_day": 100}


async def test_lanes_alone_bring_their_default_along(bench: AdminBench) -> None:
    made = await bench.done("POST", "/tenants", json={"id": "acme", "lanes": ["throughput"]})
    changed = await bench.done("PATCH", "/tenants/acme", json={"lanes": ["latency"], "default_lane": None})
    both = await bench.done("PATCH", "/tenants/acme", json={"lanes": None})

    assert [tenant["default_lane"] for tenant in (made, changed, both)] == ["throughput", "latency", "latency"]
    stated = {"default_lane": "latency", "lanes": ["throughput"]}
    assert (await bench.refused("PATCH", "/tenants/acme", json=stated))[2] == "default_lane"


async def test_limits_that_are_null_are_all_taken_away(bench: AdminBench) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme", "limits": {"tokens_per_day": 100}})

    changed = await bench.done("PATCH", "/tenants/acme", json={"limits": None})

    assert changed["limits"] == {}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"id": "other"}, "id"),
        ({"state": "suspended"}, "state"),
        ({"version": 7}, "version"),
        ({"weight": -1}, "weight"),
        ({"weight": 0}, "weight"),
        ({"weight": 1e9}, "weight"),
        ({"timezone": "Nowhere"}, "timezone"),
        ({"timezone": "../etc/passwd"}, "timezone"),
        ({"default_lane": "throughput", "lanes": ["latency"]}, "default_lane"),
        ({"parent": "nobody"}, "parent"),
        ({"parent": "acme"}, "parent"),
        ({"limits": {"tokens_per_eon": 1}}, "limits.tokens_per_eon"),
        ({"limits": {"tokens_per_day": -1}}, "limits.tokens_per_day"),
        ({"limits": {"tokens_per_day": 0.5}}, "limits.tokens_per_day"),
        ({"limits": {"tokens_per_day": 10**15 + 1}}, "limits.tokens_per_day"),
        ({"limits_by": [{"limits": {}}]}, "limits_by.0"),
        ({"shadow": ["everything"]}, "shadow.[0]"),
        ({"models": ["bell\u0007"]}, "models"),
    ],
)
async def test_a_wrong_change_is_named_and_changes_nothing(
    bench: AdminBench, change: dict[str, Any], param: str
) -> None:
    made = await bench.done("POST", "/tenants", json={"id": "acme", "weight": 2, "limits": {"tokens_per_day": 9}})

    refused = await bench.refused("PATCH", "/tenants/acme", json={"name": "B", **change})

    assert refused == (400, "invalid_request_error", param)
    assert await bench.done("GET", "/tenants/acme") == made
    assert [entry["action"] for entry in await bench.audit()] == ["tenant.create"]


async def test_a_change_that_changes_nothing_is_no_new_version(bench: AdminBench) -> None:
    made = await bench.done("POST", "/tenants", json={"id": "acme", "weight": 2})

    assert await bench.done("PATCH", "/tenants/acme", json={"weight": 2.0}) == made
    assert [entry["action"] for entry in await bench.audit()] == ["tenant.create"]


async def test_a_suspended_tenant_is_resumed(bench: AdminBench) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme"})

    suspended = await bench.done("POST", "/tenants/acme/suspend")
    again = await bench.done("POST", "/tenants/acme/suspend")
    resumed = await bench.done("POST", "/tenants/acme/resume", json={})

    assert [suspended["state"], again["state"], resumed["state"]] == ["suspended", "suspended", "active"]
    actions = [entry["action"] for entry in await bench.audit()]
    assert actions == ["tenant.create", "tenant.suspend", "tenant.resume"]


async def test_a_deleted_tenant_is_gone_and_its_name_can_be_used_again(bench: AdminBench) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme"})

    assert await bench.done("DELETE", "/tenants/acme") == {"id": "acme", "deleted": True}
    assert await bench.refused("GET", "/tenants/acme") == (404, "not_found", None)
    assert await bench.refused("DELETE", "/tenants/acme") == (404, "not_found", None)
    assert (await bench.done("GET", "/tenants"))["data"] == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/tenants/nobody"),
        ("PATCH", "/tenants/nobody"),
        ("DELETE", "/tenants/nobody"),
        ("POST", "/tenants/nobody/suspend"),
        ("POST", "/tenants/nobody/resume"),
        ("GET", "/tenants/nobody/keys"),
        ("GET", "/tenants/nobody/quota"),
        ("PUT", "/tenants/nobody/quota"),
        ("PATCH", "/tenants/nobody/quota"),
        ("GET", "/tenants/nobody/usage"),
        ("GET", "/tenants/%7Bacme%7D"),
        ("GET", "/tenants/%F0%9F%90%99"),
    ],
)
async def test_a_tenant_that_is_not_there_is_404(bench: AdminBench, method: str, path: str) -> None:
    options: dict[str, Any] = {} if method == "GET" else {"json": {"limits": {}} if "quota" in path else {}}

    assert await bench.refused(method, path, **options) == (404, "not_found", None)


async def test_tenants_come_in_pages_by_id(bench: AdminBench) -> None:
    for name in ("delta", "alpha", "echo", "charlie", "bravo"):
        await bench.done("POST", "/tenants", json={"id": name})

    first = await bench.done("GET", "/tenants?limit=2")
    second = await bench.done("GET", f"/tenants?limit=2&after={first['last_id']}")
    third = await bench.done("GET", f"/tenants?limit=2&after={second['last_id']}")

    pages = [[tenant["id"] for tenant in page["data"]] for page in (first, second, third)]
    assert pages == [["alpha", "bravo"], ["charlie", "delta"], ["echo"]]
    assert [page["has_more"] for page in (first, second, third)] == [True, True, False]
    assert (await bench.done("GET", "/tenants?after=zulu")) == {"data": [], "has_more": False, "last_id": None}


async def test_a_page_of_tenants_has_the_quotas_where_they_are_asked_for(
    bench: AdminBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_tenants, "QUOTAS_AT_ONCE", 2)
    for number, name in enumerate(("alpha", "bravo", "charlie")):
        await bench.done("POST", "/tenants", json={"id": name, "limits": {"tokens_per_day": 100 + number}})
    await bench.done("POST", "/tenants", json={"id": "delta"})

    shown = (await bench.done("GET", "/tenants?limit=4&quota=true"))["data"]
    assert [each["quota"] for each in shown] == [
        await bench.done("GET", f"/tenants/{each['id']}/quota") for each in shown
    ]
    assert [each["quota"]["limits"].get("tokens_per_day", {}).get("limit") for each in shown] == [100, 101, 102, None]
    assert "quota" not in (await bench.done("GET", "/tenants?limit=1"))["data"][0]


@pytest.mark.parametrize("path", ["/tenants", "/tenants/acme/keys", "/workers", "/lanes", "/audit"])
@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=-1", "limit"),
        ("limit=1001", "limit"),
        ("limit=ten", "limit"),
        ("limit=1.5", "limit"),
        ("after=" + "x" * 201, "after"),
        ("page=2", "page"),
    ],
)
async def test_the_query_of_every_list_is_checked_like_a_body(
    bench: AdminBench, path: str, query: str, param: str
) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme"})

    assert await bench.refused("GET", f"{path}?{query}") == (400, "invalid_request_error", param)
    assert (await bench.done("GET", f"{path}?limit=1000"))["has_more"] is False


async def test_concurrent_changes_of_different_fields_all_hold(bench: AdminBench) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme"})
    changes = [{"weight": 9}, {"name": "A"}, {"timezone": "Asia/Tokyo"}, {"limits": {"tokens_per_day": 7}}]

    async with anyio.create_task_group() as tasks:
        for change in changes:
            tasks.start_soon(partial(bench.done, "PATCH", "/tenants/acme", json=change))

    changed = await bench.done("GET", "/tenants/acme")
    assert (changed["weight"], changed["name"], changed["timezone"]) == (9, "A", "Asia/Tokyo")
    assert changed["limits"] == {"tokens_per_day": 7}
    assert changed["version"] == len(await bench.audit())
