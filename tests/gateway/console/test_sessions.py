"""The console's sessions: signed in once, by a cookie that no script reads and no other site can use."""

from typing import Any

import httpx
import pytest

from fairlane.gateway.control.operators.admin_key import AdminKeys
from fairlane.gateway.control.operators.admin_tokens import AdminTokens, operator_of
from fairlane.gateway.control.operators.operator import OWNER, Role
from fairlane.gateway.control.operators.sessions import LASTS_S, SESSIONS_OF_AN_OPERATOR, SIGN_INS_A_MINUTE, Sessions
from fairlane.gateway.errors import ApiError
from tests.support.gateway.admin_app import HEADERS, AdminBench, HandFleet, application

pytestmark = pytest.mark.anyio

OWN = {"origin": "http://gateway", "x-fairlane-csrf": "1"}
TENANTS = "/admin/v1/tenants"


async def signed_in(bench: AdminBench, **headers: str) -> dict[str, str]:
    """The cookie of a new session."""
    answer = await bench.http.post("/console/session", headers={**HEADERS, **OWN, **headers})
    bench.http.cookies.clear()
    assert answer.status_code == 204, answer.text
    return {"cookie": "a=b; " + answer.headers["set-cookie"].partition(";")[0]}


async def status(bench: AdminBench, method: str, path: str, headers: dict[str, str], **options: Any) -> int:
    answer = await bench.http.request(method, path, headers=headers, **options)
    bench.http.cookies.clear()
    return answer.status_code


async def test_a_session_is_as_good_as_the_key_until_it_is_ended(bench: AdminBench) -> None:
    session = await signed_in(bench)

    assert await status(bench, "GET", TENANTS, session) == 200
    assert await status(bench, "POST", TENANTS, session | OWN, json={"id": "acme"}) == 201
    assert await status(bench, "DELETE", "/console/session", session | OWN) == 204
    assert await status(bench, "GET", TENANTS, session) == 401


async def test_the_cookie_is_for_this_site_alone_and_no_script(bench: AdminBench) -> None:
    answer = await bench.http.post("/console/session", headers=HEADERS | OWN)
    name, *attributes = answer.headers["set-cookie"].split("; ")

    assert name.startswith("fairlane=")
    assert attributes == ["Path=/", f"Max-Age={LASTS_S}", "HttpOnly", "SameSite=Strict"]
    assert answer.headers["cache-control"] == "no-store"


async def test_the_first_of_two_cookies_with_one_name_counts(bench: AdminBench) -> None:
    session = (await signed_in(bench))["cookie"]

    assert await status(bench, "GET", TENANTS, {"cookie": f"fairlane=A; {session}"}) == 401
    assert await status(bench, "GET", TENANTS, {"cookie": f"{session}; fairlane=A"}) == 200


async def test_under_tls_the_cookie_is_bound_to_it(bench: AdminBench) -> None:
    transport = httpx.ASGITransport(application(bench.redis, HandFleet()))
    async with httpx.AsyncClient(transport=transport, base_url="https://gateway") as http:
        answer = await http.post("/console/session", headers={**HEADERS, **OWN, "origin": "https://gateway"})
        assert (await http.post("/console/session", headers=HEADERS | OWN)).status_code == 403

    name, *attributes = answer.headers["set-cookie"].split("; ")
    assert name.startswith("__Host-fairlane=")
    assert attributes == ["Path=/", f"Max-Age={LASTS_S}", "HttpOnly", "SameSite=Strict", "Secure"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-fairlane-csrf": "1"},
        {"origin": "http://gateway"},
        {"origin": "http://elsewhere", "x-fairlane-csrf": "1"},
        {"origin": "http://gateway.elsewhere", "x-fairlane-csrf": "1"},
        {"origin": "null", "x-fairlane-csrf": "1"},
        {"origin": "http://gateway", "x-fairlane-csrf": ""},
    ],
)
async def test_another_site_changes_nothing_with_it(bench: AdminBench, headers: dict[str, str]) -> None:
    session = await signed_in(bench)

    assert await status(bench, "POST", TENANTS, session | headers, json={"id": "acme"}) == 403
    assert await status(bench, "DELETE", "/console/session", session | headers) == 403
    assert await status(bench, "POST", "/console/session", HEADERS | headers) == 403
    assert await status(bench, "GET", TENANTS, session) == 200
    assert (await bench.done("GET", "/tenants"))["data"] == []


async def test_only_the_key_signs_in(bench: AdminBench) -> None:
    session = await signed_in(bench)

    assert await status(bench, "POST", "/console/session", {"authorization": "Bearer wrong", **OWN}) == 401
    assert await status(bench, "POST", "/console/session", session | OWN) == 401, "a session does not renew itself"


async def test_a_key_that_is_sent_counts_and_not_the_cookie(bench: AdminBench) -> None:
    session = await signed_in(bench)

    assert await status(bench, "GET", TENANTS, session | {"authorization": "Bearer wrong"}) == 401
    assert await status(bench, "GET", TENANTS, {"cookie": "fairlane=nonsense"}) == 401
    assert await status(bench, "GET", TENANTS, {"cookie": "fairlane="}) == 401


async def test_the_store_has_neither_session_nor_key_and_forgets_after_eight_hours(bench: AdminBench) -> None:
    session = (await signed_in(bench))["cookie"].partition("fairlane=")[2]
    (place,) = [name async for name in bench.redis.scan_iter("fl:session:*")]
    (listed,) = [name async for name in bench.redis.scan_iter("fl:sessions:*")]

    kept = repr((place, await bench.redis.get(place), listed, await bench.redis.zrange(listed, 0, -1)))
    assert session not in kept
    assert LASTS_S - 60 <= await bench.redis.ttl(place) <= LASTS_S


@pytest.mark.parametrize("configured", [True, False])
async def test_any_gateway_knows_it_and_with_another_key_none_does(bench: AdminBench, configured: bool) -> None:
    key = "k" * 32 if configured else None
    here, there = (AdminKeys(bench.redis, key) for _ in range(2))
    await here.ensure()
    tokens = AdminTokens(bench.redis)
    session = await Sessions(bench.redis, here, tokens).begin(OWNER)
    assert await Sessions(bench.redis, there, tokens).operator(session) == OWNER

    if configured:
        there = AdminKeys(bench.redis, "another" * 8)
    else:
        await bench.redis.delete(AdminKeys.STORED_AT)
        await there.ensure()
    with pytest.raises(Exception, match="Incorrect API key"):
        await Sessions(bench.redis, there, tokens).operator(session)


async def test_anyone_may_ask_whether_and_as_whom_they_are_signed_in(bench: AdminBench) -> None:
    session = await signed_in(bench)

    async def told(headers: dict[str, str]) -> Any:
        answer = await bench.http.get("/console/session", headers=headers)
        bench.http.cookies.clear()
        assert answer.status_code == 200
        return answer.json()["operator"]

    assert await told({}) is None
    assert await told({"cookie": "fairlane=nonsense"}) is None
    assert await told(session) == {"name": "admin", "role": "owner", "kind": "key"}
    assert await status(bench, "DELETE", "/console/session", session | OWN) == 204
    assert await told(session) is None


async def test_of_an_operators_sessions_the_oldest_ends_with_the_next_one_too_many(bench: AdminBench) -> None:
    admin_keys, tokens = AdminKeys(bench.redis, "k" * 32), AdminTokens(bench.redis)
    sessions = Sessions(bench.redis, admin_keys, tokens)
    token, _ = await tokens.create("ada", Role.VIEWER, OWNER)
    other = await sessions.begin(OWNER)

    async def begin() -> str:
        async for counter in bench.redis.scan_iter("fl:sign-ins:*"):
            await bench.redis.delete(counter)  # as a minute later
        return await sessions.begin(operator_of(token))

    begun = [await begin() for _ in range(SESSIONS_OF_AN_OPERATOR)]
    await sessions.end(begun.pop())  # makes room for one
    begun.append(await begin())
    for session in (*begun, other):
        await sessions.operator(session)
    begun.append(await begin())

    with pytest.raises(ApiError):
        await sessions.operator(begun[0])
    for session in (*begun[1:], other):
        await sessions.operator(session)
    assert len([name async for name in bench.redis.scan_iter("fl:session:*")]) == SESSIONS_OF_AN_OPERATOR + 1


async def test_an_operator_signs_in_so_often_a_minute_and_each_time_is_in_the_audit_log(bench: AdminBench) -> None:
    made = await bench.done("POST", "/tokens", json={"name": "ada", "role": "viewer"})
    ada = {"authorization": f"Bearer {made['token']}", **OWN}

    statuses = [await status(bench, "POST", "/console/session", ada) for _ in range(SIGN_INS_A_MINUTE + 1)]
    refused = await bench.http.post("/console/session", headers=ada)

    assert statuses == [204] * SIGN_INS_A_MINUTE + [429]
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert int(refused.headers["retry-after"]) >= 1
    await signed_in(bench)  # others are not kept out
    entries = [entry for entry in await bench.audit() if entry["action"] == "session.create"]
    assert [entry["actor"] for entry in entries] == [f"token:{made['id']}:ada"] * SIGN_INS_A_MINUTE + ["admin"]
    assert entries[0]["changes"] == {"before": None, "after": {"role": "viewer", "kind": "token"}}


async def test_the_currency_and_links_are_shown_only_to_who_is_signed_in(bench: AdminBench) -> None:
    session = await signed_in(bench)

    told = (await bench.http.get("/console/session", headers=session)).json()
    without = (await bench.http.get("/console/session")).json()

    assert told["installation"] == {"currency": "EUR", "links": {}}
    assert without == {"operator": None, "oidc": None}
