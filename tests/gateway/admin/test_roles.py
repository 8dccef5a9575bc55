"""Who may make which call: every operation, every role."""

from typing import Any

import httpx
import pytest

from fairlane.gateway.control.admin import routes as admin
from fairlane.gateway.control.admin.operation import Operation
from fairlane.gateway.control.operators.admin_tokens import AdminTokens
from fairlane.gateway.control.operators.operator import Role
from fairlane.quotas.audit import Audit, Note
from fairlane.store.errors import StoreUnavailable
from tests.support.gateway.admin_app import AdminBench

pytestmark = pytest.mark.anyio

OPERATIONS = admin.OPERATIONS
OF_OPERATORS = {
    "change_tenant",
    "suspend_tenant",
    "resume_tenant",
    "create_key",
    "change_key",
    "revoke_key",
    "rotate_key",
    "replace_quota",
    "change_quota",
    "drain_worker",
    "undrain_worker",
    "change_project",
    "archive_project",
    "delete_project_key",
    "create_service_account",
    "change_rate_limit",
    "upload_trace",
    "get_trace",
    "simulate",
}
OF_OWNERS = {
    "replace_prices",
    "create_tenant",
    "delete_tenant",
    "erase_tenant",
    "create_project",
    "create_token",
    "list_tokens",
    "revoke_token",
}
CHANGES_NOTHING = {"explain"}
"""A POST that viewers may make."""


async def token(bench: AdminBench, role: Role, name: str = "ada", **fields: Any) -> dict[str, Any]:
    """A new one, as it is shown once."""
    made: dict[str, Any] = await bench.done("POST", "/tokens", json={"name": name, "role": role.value, **fields})
    return made


async def asked(bench: AdminBench, secret: str, operation: Operation) -> httpx.Response:
    """The operation's answer to who shows a token: of things that are not there."""
    path = operation.path.replace("{", "no-").replace("}", "")
    method = "HEAD" if operation.name == "watch_overview" else operation.method
    return await bench.http.request(method, path, headers={"authorization": f"Bearer {secret}"})


def expected(operation: Operation) -> Role:
    if operation.name in OF_OWNERS:
        return Role.OWNER
    if operation.name in OF_OPERATORS:
        return Role.OPERATOR
    assert operation.method == "GET" or operation.name in CHANGES_NOTHING, f"{operation.name}: of whom?"
    return Role.VIEWER


@pytest.mark.parametrize("role", list(Role))
async def test_each_role_may_make_its_calls_and_no_others(bench: AdminBench, role: Role) -> None:
    secret = (await token(bench, role))["token"]
    for operation in OPERATIONS:
        answer = await asked(bench, secret, operation)
        if role.includes(expected(operation)):
            assert answer.status_code not in (401, 403), operation.name
        else:
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["type"]) == (403, "role_not_allowed", "permission_error")


async def test_the_admin_key_is_an_owner(bench: AdminBench) -> None:
    assert await bench.done("GET", "/me") == {"name": "admin", "role": "owner", "kind": "key"}


async def test_whoever_calls_is_told_who_that_is_and_named_in_the_audit_log(bench: AdminBench) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme"})
    made = await token(bench, Role.OPERATOR, "on-call")
    as_operator = {"authorization": f"Bearer {made['token']}"}

    me = await bench.http.get("/admin/v1/me", headers=as_operator)
    await bench.http.post("/admin/v1/tenants/acme/suspend", headers=as_operator)

    assert me.json() == {"name": "on-call", "role": "operator", "kind": "token"}
    assert [(entry["action"], entry["actor"]) for entry in await bench.audit()] == [
        ("tenant.create", "admin"),
        ("token.create", "admin"),
        ("tenant.suspend", f"token:{made['id']}:on-call"),
    ]


async def test_a_token_is_shown_once_and_kept_as_a_hash(bench: AdminBench) -> None:
    made = await token(bench, Role.VIEWER)
    listed = (await bench.done("GET", "/tokens"))["data"]
    kept = repr(await bench.redis.hgetall("fl:{operators}:tokens"))

    assert made["token"].startswith(f"flo-{made['id']}-")
    assert listed == [{name: value for name, value in made.items() if name != "token"}]
    assert made["id"] in kept
    assert made["token"].removeprefix(f"flo-{made['id']}-") not in kept
    assert made["token"] not in str(await bench.audit())


async def test_a_revoked_token_and_its_session_end_at_once(bench: AdminBench) -> None:
    made = await token(bench, Role.OWNER)
    shown = {"authorization": f"Bearer {made['token']}"}
    own = {"origin": "http://gateway", "x-fairlane-csrf": "1"}
    signed_in = await bench.http.post("/console/session", headers=shown | own)
    assert signed_in.status_code == 204
    assert (await bench.http.get("/admin/v1/me")).json() == {"name": "ada", "role": "owner", "kind": "token"}

    assert await bench.done("DELETE", f"/tokens/{made['id']}") == {"id": made["id"], "deleted": True}

    assert (await bench.http.get("/admin/v1/me")).status_code == 401
    bench.http.cookies.clear()
    assert (await bench.http.get("/admin/v1/me", headers=shown)).status_code == 401
    assert await bench.refused("DELETE", f"/tokens/{made['id']}") == (404, "not_found", None)
    assert [entry["action"] for entry in await bench.audit()] == ["token.create", "session.create", "token.revoke"]


async def test_a_token_works_until_it_expires(bench: AdminBench) -> None:
    made = await token(bench, Role.VIEWER, expires_at="2050-01-31T00:00:00Z")
    assert made["expires_at"] == 2_527_200_000

    assert await AdminTokens(bench.redis, clock=lambda: 2_527_199_999.0).shown(made["token"]) is not None
    assert await AdminTokens(bench.redis, clock=lambda: 2_527_200_001.0).shown(made["token"]) is None
    assert (await bench.done("GET", "/tokens"))["data"][0]["id"] == made["id"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"role": "viewer"}, "name"),
        ({"name": "", "role": "viewer"}, "name"),
        ({"name": " ", "role": "viewer"}, "name"),
        ({"name": "x" * 10_000, "role": "viewer"}, "name"),
        ({"name": "a\u202eb", "role": "viewer"}, "name"),
        ({"name": "a", "role": "root"}, "role"),
        ({"name": "a"}, "role"),
        ({"name": "a", "role": "viewer", "expires_at": 1}, "expires_at"),
        ({"name": "a", "role": "viewer", "expires_at": "tomorrow"}, "expires_at"),
        ({"name": "a", "role": "viewer", "scopes": []}, "scopes"),
    ],
)
async def test_a_token_that_cannot_be_is_refused_by_its_field(
    bench: AdminBench, body: dict[str, Any], param: str
) -> None:
    assert await bench.refused("POST", "/tokens", json=body) == (400, "invalid_request_error", param)


async def test_a_name_with_markup_comes_back_as_it_is(bench: AdminBench) -> None:
    name = '<img src=x onerror="alert(1)">'
    await token(bench, Role.VIEWER, name)

    assert (await bench.done("GET", "/tokens"))["data"][0]["name"] == name


@pytest.mark.parametrize("wrong", ["flo-", "flo-0123456789ab-", "flo-0123456789ab-" + "x" * 43, "flo-../../x"])
async def test_what_only_looks_like_a_token_is_nobody_s(bench: AdminBench, wrong: str) -> None:
    made = await token(bench, Role.OWNER)
    for secret in (wrong, made["token"][:-1], made["token"] + "x", made["token"].upper(), made["id"]):
        answer = await bench.http.get("/admin/v1/me", headers={"authorization": f"Bearer {secret}"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_a_forged_session_is_nobody_s(bench: AdminBench) -> None:
    """Whoever changes what the store has of a session, without its id, makes nothing of it."""
    made = await token(bench, Role.VIEWER)
    own = {"origin": "http://gateway", "x-fairlane-csrf": "1", "authorization": f"Bearer {made['token']}"}
    await bench.http.post("/console/session", headers=own)
    (place,) = [name async for name in bench.redis.scan_iter("fl:session:*")]
    stored = await bench.redis.get(place)
    assert isinstance(stored, bytes)
    assert (await bench.http.get("/admin/v1/me")).json()["role"] == "viewer"

    for forged in (stored.replace(b"viewer", b"owner."), stored.replace(b"token", b"key\x00\x00", 1), b"", b"\xff" * 9):
        await bench.redis.set(place, forged)
        assert (await bench.http.get("/admin/v1/me")).status_code == 401
    bench.http.cookies.clear()


async def test_a_viewer_s_session_may_not_change_anything(bench: AdminBench) -> None:
    made = await token(bench, Role.VIEWER)
    own = {"origin": "http://gateway", "x-fairlane-csrf": "1"}
    await bench.http.post("/console/session", headers={**own, "authorization": f"Bearer {made['token']}"})

    answer = await bench.http.post("/admin/v1/workers/w1/drain", headers=own)
    bench.http.cookies.clear()

    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "role_not_allowed")
    assert bench.fleet.drained == []


async def test_a_revocation_that_the_audit_log_missed_is_noted_when_it_is_repeated(
    bench: AdminBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, append = await token(bench, Role.VIEWER), Audit.append
    failures = [StoreUnavailable("no reply")]

    async def fail_once(audit: Audit, note: Note) -> None:
        if failures:
            raise failures.pop()
        await append(audit, note)

    monkeypatch.setattr(Audit, "append", fail_once)
    first = await bench.refused("DELETE", f"/tokens/{made['id']}")
    works = await bench.http.get("/admin/v1/me", headers={"authorization": f"Bearer {made['token']}"})
    again = await bench.done("DELETE", f"/tokens/{made['id']}")

    assert (first[:2], works.status_code, again["deleted"]) == ((503, "quota_store_unavailable"), 401, True)
    assert [entry["action"] for entry in await bench.audit()] == ["token.create", "token.revoke"]
    assert (await bench.done("GET", "/tokens"))["data"] == []
