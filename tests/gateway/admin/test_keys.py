"""A tenant's API keys through the admin API: shown once, recognised, revoked, rotated."""

import json
from typing import Any

import pytest

from tests.support.gateway.admin_app import HEADERS, AdminBench

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
async def acme(bench: AdminBench) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme"})


async def make(bench: AdminBench, **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = await bench.done("POST", "/tenants/acme/keys", json={"name": "first", **fields})
    return made


async def test_a_new_key_is_shown_once_and_works(bench: AdminBench) -> None:
    answer = await bench.call("POST", "/tenants/acme/keys", json={"name": "first"})

    made = answer.json()
    assert answer.status_code == 201
    assert made["key"].startswith(f"fl-{made['id']}-")
    identity = await bench.keys.lookup(made["key"])
    assert identity is not None
    assert identity.tenant.id == "acme"
    (listed,) = (await bench.done("GET", "/tenants/acme/keys"))["data"]
    assert {**made, **listed} == {**made, "last_used_at": listed["last_used_at"]}
    assert "key" not in listed


async def test_no_secret_ever_reaches_the_audit_log(bench: AdminBench) -> None:
    made = await make(bench)
    rotated = await bench.done("POST", f"/tenants/acme/keys/{made['id']}/rotate", json={"overlap_s": 60})

    log = json.dumps(await bench.audit())

    for key in (made["key"], rotated["key"]):
        assert key not in log
        assert key.rpartition("-")[2] not in log


async def test_a_key_keeps_its_expiry_limits_and_scopes(bench: AdminBench) -> None:
    scopes = {"models": ["tiny"], "lanes": ["latency"], "endpoints": ["/v1/completions"], "cidrs": ["10.0.0.0/8"]}
    scopes["act_as"] = ["beta"]

    made = await make(bench, expires_at="2100-01-01T00:00:00Z", limits={"tokens_per_day": 5}, scopes=scopes)

    assert made["expires_at"] == 4_102_444_800
    assert made["limits"] == {"tokens_per_day": 5}
    assert made["scopes"] == scopes


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"name": None}, "name"),
        ({"name": "n" * 201}, "name"),
        ({"name": "bell\u0007"}, "name"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"expires_at": "2100-01-01T00:00:00"}, "expires_at"),
        ({"expires_at": 1}, "expires_at"),
        ({"expires_at": True}, "expires_at"),
        ({"expires_at": 1e300}, "expires_at"),
        ({"limits": {"tokens": 5}}, "limits.tokens"),
        ({"scopes": {"cidrs": ["10.0.0.0/99"]}}, "scopes.cidrs"),
        ({"scopes": {"endpoints": ["chat/completions"]}}, "scopes.endpoints"),
        ({"scopes": {"endpoints": ["/v1/models", "chat"]}}, "scopes.endpoints"),
        ({"scopes": {"endpoints": ["/v1x"]}}, "scopes.endpoints"),
        ({"scopes": {"endpoints": ["/v1/models/"]}}, "scopes.endpoints"),
        ({"scopes": {"lanes": ["slow"]}}, "scopes.lanes.[0]"),
        ({"scopes": {"verbs": []}}, "scopes.verbs"),
        ({"id": "mine"}, "id"),
        ({"key": "fl-mine"}, "key"),
    ],
)
async def test_what_is_wrong_is_named_and_no_key_is_made(bench: AdminBench, fields: dict[str, Any], param: str) -> None:
    status, code, named = await bench.refused("POST", "/tenants/acme/keys", json={"name": "first", **fields})

    assert (status, code) == (400, "invalid_request_error")
    assert named is not None
    assert named.startswith(param)
    assert (await bench.done("GET", "/tenants/acme/keys"))["data"] == []


async def test_a_revoked_key_works_no_more_and_stays_listed(bench: AdminBench) -> None:
    made = await make(bench)

    first = await bench.done("DELETE", f"/tenants/acme/keys/{made['id']}")
    again = await bench.done("DELETE", f"/tenants/acme/keys/{made['id']}")

    assert first["state"] == again["state"] == "revoked"
    assert await bench.keys.lookup(made["key"]) is None
    assert [entry["action"] for entry in await bench.audit()] == ["tenant.create", "key.create", "key.revoke"]


async def test_a_rotated_key_works_through_the_overlap(bench: AdminBench) -> None:
    old = await make(bench, scopes={"models": ["tiny"]})

    new = await bench.done("POST", f"/tenants/acme/keys/{old['id']}/rotate", json={"overlap_s": 3600})

    assert new["id"] != old["id"]
    assert new["scopes"] == old["scopes"]
    assert await bench.keys.lookup(old["key"]) is not None
    assert await bench.keys.lookup(new["key"]) is not None


async def test_without_an_overlap_the_old_key_ends_at_once(bench: AdminBench) -> None:
    old = await make(bench)

    new = await bench.done("POST", f"/tenants/acme/keys/{old['id']}/rotate")

    assert await bench.keys.lookup(old["key"]) is None
    assert await bench.keys.lookup(new["key"]) is not None


@pytest.mark.parametrize("overlap_s", [-1, "60", 1e12, None])
async def test_a_wrong_overlap_rotates_nothing(bench: AdminBench, overlap_s: object) -> None:
    made = await make(bench)
    path = f"/tenants/acme/keys/{made['id']}/rotate"

    assert await bench.refused("POST", path, json={"overlap_s": overlap_s}) == (
        400,
        "invalid_request_error",
        "overlap_s",
    )
    assert len((await bench.done("GET", "/tenants/acme/keys"))["data"]) == 1


async def test_keys_belong_to_their_tenant_alone(bench: AdminBench) -> None:
    made = await make(bench)
    await bench.done("POST", "/tenants", json={"id": "other"})

    for method, path in (("DELETE", ""), ("POST", "/rotate")):
        refused = await bench.refused(method, f"/tenants/other/keys/{made['id']}{path}")
        assert refused == (404, "not_found", None)
    assert await bench.keys.lookup(made["key"]) is not None


@pytest.mark.parametrize("key_id", ["nope", "%00", "a" * 500, "%E2%98%83"])
async def test_a_key_that_is_not_there_is_404(bench: AdminBench, key_id: str) -> None:
    assert await bench.refused("DELETE", f"/tenants/acme/keys/{key_id}") == (404, "not_found", None)
    assert await bench.refused("POST", f"/tenants/acme/keys/{key_id}/rotate") == (404, "not_found", None)
    assert await bench.refused("GET", f"/tenants/acme/keys/{key_id}") == (404, "not_found", None)
    assert await bench.refused("PATCH", f"/tenants/acme/keys/{key_id}", json={}) == (404, "not_found", None)


async def test_keys_come_in_pages_by_creation(bench: AdminBench) -> None:
    ids = [(await make(bench, name=f"key {number}"))["id"] for number in range(3)]

    first = await bench.done("GET", "/tenants/acme/keys?limit=2")
    rest = await bench.done("GET", f"/tenants/acme/keys?limit=2&after={first['last_id']}")

    assert sorted(key["id"] for key in [*first["data"], *rest["data"]]) == sorted(ids)
    assert (first["has_more"], rest["has_more"]) == (True, False)


async def test_a_deleted_tenant_s_keys_stop_at_once(bench: AdminBench) -> None:
    made = await make(bench)

    await bench.done("DELETE", "/tenants/acme")

    assert await bench.keys.lookup(made["key"]) is None


async def test_a_key_says_when_it_was_last_used_to_the_minute(bench: AdminBench) -> None:
    made = await make(bench)
    path = f"/tenants/acme/keys/{made['id']}"
    assert made["last_used_at"] is None

    await bench.keys.lookup(made["key"])
    first = (await bench.done("GET", path))["last_used_at"]
    await bench.keys.lookup(made["key"])
    again = (await bench.done("GET", path))["last_used_at"]
    record = f"fl:quota:{{acme}}:key:{made['id']}"
    await bench.redis.hset(record, "used_ms", int((first - 60.5) * 1e3))
    await bench.keys.lookup(made["key"])
    later = (await bench.done("GET", "/tenants/acme/keys"))["data"][0]["last_used_at"]

    assert abs(first - made["created_at"]) < 30
    assert again == first <= later


async def test_a_key_that_does_not_work_is_not_used(bench: AdminBench) -> None:
    revoked, expired = await make(bench), await make(bench)
    await bench.done("DELETE", f"/tenants/acme/keys/{revoked['id']}")
    await bench.redis.hset(f"fl:quota:{{acme}}:key:{expired['id']}", "expires_ms", 1)

    assert [await bench.keys.lookup(key["key"]) for key in (revoked, expired)] == [None, None]

    listed = (await bench.done("GET", "/tenants/acme/keys"))["data"]
    assert [key["last_used_at"] for key in listed] == [None, None]


async def test_using_a_key_is_no_change_of_it(bench: AdminBench) -> None:
    made = await make(bench)
    path = f"/tenants/acme/keys/{made['id']}"
    seen = (await bench.call("GET", path)).headers["etag"]

    await bench.keys.lookup(made["key"])

    assert (await bench.call("GET", path)).headers["etag"] == seen


async def test_a_change_holds_for_what_it_names(bench: AdminBench) -> None:
    scopes = {"models": ["tiny"], "lanes": ["latency"]}
    made = await make(bench, limits={"tokens_per_day": 5, "concurrent_requests": 1}, scopes=scopes)
    path = f"/tenants/acme/keys/{made['id']}"

    changed = await bench.done("PATCH", path, json={"name": "second", "limits": {"tokens_per_day": None}})
    again = await bench.done("PATCH", path, json={"expires_at": 4_102_444_800, "scopes": {"lanes": ["throughput"]}})
    cleared = await bench.done("PATCH", path, json={"expires_at": None, "scopes": None, "limits": None})

    assert (changed["name"], changed["limits"], changed["scopes"]) == (
        "second",
        {"concurrent_requests": 1},
        made["scopes"],
    )
    assert (again["expires_at"], again["scopes"]["models"], again["scopes"]["lanes"]) == (
        4_102_444_800,
        None,
        ["throughput"],
    )
    assert (cleared["name"], cleared["expires_at"], cleared["limits"]) == ("second", None, {})
    assert await bench.done("GET", path) == cleared
    identity = await bench.keys.lookup(made["key"])
    assert identity is not None
    assert identity.key.name == "second"


async def test_a_change_says_in_the_log_what_was_and_what_is(bench: AdminBench) -> None:
    made = await make(bench)
    path = f"/tenants/acme/keys/{made['id']}"

    await bench.done("PATCH", path, json={"name": "second"})
    await bench.done("PATCH", path, json={"name": "second"})

    entries = [entry for entry in await bench.audit() if entry["action"] == "key.update"]
    assert [entry["changes"] for entry in entries] == [{"before": {"name": "first"}, "after": {"name": "second"}}]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"expires_at": 1}, "expires_at"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"limits": {"tokens": 5}}, "limits.tokens"),
        ({"limits": {"tokens_per_day": -5}}, "limits.tokens_per_day"),
        ({"scopes": {"cidrs": ["10.0.0.0/99"]}}, "scopes.cidrs"),
        ({"state": "active"}, "state"),
        ({"tenant": "other"}, "tenant"),
        ({"last_used_at": 1}, "last_used_at"),
    ],
)
async def test_a_wrong_change_is_named_and_changes_nothing(
    bench: AdminBench, change: dict[str, Any], param: str
) -> None:
    made = await make(bench)
    path = f"/tenants/acme/keys/{made['id']}"

    assert await bench.refused("PATCH", path, json={"name": "n", **change}) == (400, "invalid_request_error", param)
    assert await bench.done("GET", path) == {name: value for name, value in made.items() if name != "key"}


async def test_a_key_is_changed_as_it_was_seen_or_not_at_all(bench: AdminBench) -> None:
    made = await make(bench)
    url, seen = f"/admin/v1/tenants/acme/keys/{made['id']}", {"if-match": f'"{made["version"]}"'}

    first = await bench.http.patch(url, json={"name": "a"}, headers={**HEADERS, **seen})
    second = await bench.http.patch(url, json={"name": "b"}, headers={**HEADERS, **seen})

    assert (first.status_code, second.status_code) == (200, 412)
    assert (await bench.done("GET", f"/tenants/acme/keys/{made['id']}"))["name"] == "a"


async def test_a_revoked_key_changes_no_more(bench: AdminBench) -> None:
    made = await make(bench)
    path = f"/tenants/acme/keys/{made['id']}"
    await bench.done("DELETE", path)

    assert await bench.refused("PATCH", path, json={"name": "n"}) == (404, "not_found", None)


async def test_a_key_s_largest_limit_is_kept_to_the_token(bench: AdminBench) -> None:
    limit = 10**15 - 1
    made = await make(bench, limits={"tokens_per_day": limit})

    of_key = [status for status in await bench.budgets.statuses("acme", "acme", made["id"]) if status.scope == "key"]

    assert [status.limit for status in of_key] == [limit]
