"""Keys that a tenant manages itself: where it may, never with more than the calling key may do, and all audited."""

import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from fairlane.gateway.control.self_service import keys as self_service
from fairlane.gateway.control.self_service.scopes import exceeding
from fairlane.quotas.api_keys import ApiKey, Scopes
from fairlane.quotas.delegated_keys import Delegation
from tests.support.gateway.issuer import issuing, token
from tests.support.gateway.served import ASKED, CHAT, OPERATOR, Served, error_of, serving, settings

pytestmark = pytest.mark.anyio

KEYS = "/v1/keys"
MANAGED: dict[str, Any] = {"self_service": "keys"}
SCOPED = {"models": ["tiny"], "endpoints": ["/v1"], "cidrs": ["127.0.0.0/8", "::1/128"]}


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    """Two tenants that may manage their keys, and one that may not."""
    await fresh_gateway.tenant("acme", **MANAGED)
    await fresh_gateway.tenant("beta", **MANAGED)
    await fresh_gateway.tenant("managed")
    return fresh_gateway


async def call(served: Served, method: str, path: str, body: Any = None, key: str = "") -> httpx.Response:
    async with served.http as client:
        headers = {"authorization": f"Bearer {key or served.keys['acme']}"}
        return await client.request(method, path, headers=headers, json=body)


async def made(served: Served, body: Any = None, key: str = "") -> dict[str, Any]:
    answer = await call(served, "POST", KEYS, {"name": "app", **(body or {})}, key)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def owner(served: Served, tenant: str = "acme", **document: Any) -> str:
    """A further key of a tenant, as its operator makes it."""
    of = await served.resources.accounts.tenants.get(served.id_of(tenant))
    assert of is not None
    return (await served.resources.accounts.keys.create(of, {"name": "owner", **document})).secret


async def test_a_key_makes_uses_rotates_and_revokes_another(served: Served) -> None:
    first = await made(served)
    assert (await call(served, "POST", CHAT, ASKED, first["key"])).status_code == 200

    rotated = await call(served, "POST", f"{KEYS}/{first['id']}/rotate", {"overlap_s": 60})
    second = rotated.json()
    works = [(await call(served, "GET", "/v1/models", key=each["key"])).status_code for each in (first, second)]
    revoked = await call(served, "DELETE", f"{KEYS}/{second['id']}")

    assert works == [200, 200]
    assert (first["made_by"], second["made_by"]) == (served.keys["acme"].split("-")[1],) * 2
    assert revoked.json()["state"] == "revoked"
    assert "key" not in revoked.json()
    assert rotated.headers["cache-control"] == "no-store"
    assert error_of(await call(served, "GET", "/v1/models", key=second["key"])) == (401, "invalid_api_key")
    listed = (await call(served, "GET", KEYS)).json()["data"]
    assert {each["id"] for each in listed} >= {first["id"], second["id"]}
    assert not any("key" in each for each in listed)


async def test_each_change_is_audited_without_the_secret(served: Served) -> None:
    key = await made(served)
    await call(served, "DELETE", f"{KEYS}/{key['id']}")
    await call(served, "DELETE", f"{KEYS}/{key['id']}")  # changes nothing

    async with served.http as client:
        answer = await client.get("/admin/v1/audit", headers=OPERATOR)

    entries = [each for each in answer.json()["data"] if each["target"] == f"{served.id_of()}/{key['id']}"]
    assert [each["action"] for each in entries] == ["key.revoke", "key.create"]
    assert {each["actor"] for each in entries} == {f"key:{key['made_by']}"}
    assert {each["address"] for each in entries} == {"127.0.0.1"}
    assert key["key"].split("-")[2] not in answer.text


@pytest.mark.parametrize(
    ("method", "path"), [("GET", KEYS), ("POST", KEYS), ("DELETE", f"{KEYS}/x"), ("POST", f"{KEYS}/x/rotate")]
)
async def test_a_tenant_manages_keys_only_where_its_operator_allows_it(served: Served, method: str, path: str) -> None:
    answer = await call(served, method, path, {"name": "app"}, served.keys["managed"])

    assert error_of(answer) == (403, "endpoint_not_allowed")
    assert "self_service" in answer.json()["error"]["message"]


@pytest.mark.parametrize("change", [{"self_service": "none"}, {"self_service": None}])
async def test_self_service_ends_when_its_operator_ends_it(served: Served, change: dict[str, Any]) -> None:
    async with served.http as client:
        await client.patch(f"/admin/v1/tenants/{served.id_of()}", headers=OPERATOR, json=change)

    assert error_of(await call(served, "GET", KEYS)) == (403, "endpoint_not_allowed")


async def test_a_key_made_here_manages_none(served: Served) -> None:
    key = await made(served)

    for method, path in (("GET", KEYS), ("POST", KEYS), ("POST", f"{KEYS}/{key['id']}/rotate")):
        answer = await call(served, method, path, {"name": "more"}, key["key"])
        assert error_of(answer) == (403, "endpoint_not_allowed")
    rotated = (await call(served, "POST", f"{KEYS}/{key['id']}/rotate")).json()
    assert error_of(await call(served, "GET", KEYS, key=rotated["key"])) == (403, "endpoint_not_allowed")


async def test_a_key_with_limits_or_scopes_of_endpoints_manages_none(served: Served) -> None:
    limited = await owner(served, limits={"requests_per_minute": 5})
    chats = await owner(served, scopes={"endpoints": [CHAT]})

    for key in (limited, chats):
        assert error_of(await call(served, "POST", KEYS, {"name": "app"}, key)) == (403, "endpoint_not_allowed")


async def test_scopes_that_are_not_stated_are_those_of_the_calling_key(served: Served) -> None:
    key = await owner(served, scopes={**SCOPED, "act_as": ["beta"]})

    bare = await made(served, {}, key)
    narrower = await made(served, {"scopes": {"endpoints": ["/v1/chat"], "cidrs": ["127.0.0.0/24"]}}, key)

    assert bare["scopes"] == {**SCOPED, "lanes": None, "act_as": None}
    assert narrower["scopes"] == {**bare["scopes"], "endpoints": ["/v1/chat"], "cidrs": ["127.0.0.0/24"]}


@pytest.mark.parametrize(
    ("scope", "wider"),
    [
        ("models", ["tiny", "large"]),
        ("endpoints", ["/tokenize"]),
        ("endpoints", ["/v1/chat", "/detokenize"]),
        ("cidrs", ["0.0.0.0/0"]),
        ("cidrs", ["::/0"]),
        ("cidrs", ["127.0.0.0/7"]),
        ("act_as", ["beta"]),
    ],
)
async def test_a_key_may_not_give_more_than_it_has(served: Served, scope: str, wider: list[str]) -> None:
    key = await owner(served, scopes=SCOPED)

    answer = await call(served, "POST", KEYS, {"name": "app", "scopes": {scope: wider}}, key)

    assert error_of(answer) == (400, "invalid_request_error")
    assert answer.json()["error"]["param"] == f"scopes.{scope}"


async def test_keys_that_may_do_more_are_out_of_reach(served: Served) -> None:
    key, wide = await owner(served, scopes=SCOPED), served.keys["acme"].split("-")[1]

    for method, path in (("DELETE", f"{KEYS}/{wide}"), ("POST", f"{KEYS}/{wide}/rotate")):
        assert error_of(await call(served, method, path, key=key)) == (403, "endpoint_not_allowed")


async def test_a_key_makes_and_renews_none_that_outlives_it(served: Served) -> None:
    end = round(time.time()) + 3600.0
    key, wide = await owner(served, expires_at=end), served.keys["acme"].split("-")[1]

    late = await call(served, "POST", KEYS, {"name": "app", "expires_at": end + 60}, key)
    renewed = await call(served, "POST", f"{KEYS}/{wide}/rotate", key=key)

    assert (await made(served, {}, key))["expires_at"] == end
    assert (await made(served, {"expires_at": end - 60}, key))["expires_at"] == end - 60
    assert (error_of(late), late.json()["error"]["param"]) == ((400, "invalid_request_error"), "expires_at")
    assert error_of(renewed) == (403, "endpoint_not_allowed")


@pytest.mark.parametrize("suffix", ["", "/rotate"])
@pytest.mark.parametrize("name", ["a" * 16, "no-such", "..", "%00", "{other}", "k" * 3_000])
async def test_keys_of_others_do_not_exist(served: Served, suffix: str, name: str) -> None:
    other = served.keys["beta"].split("-")[1]

    answer = await call(served, "POST" if suffix else "DELETE", f"{KEYS}/{name.format(other=other)}{suffix}")

    assert answer.status_code in (404, 405)
    assert (await call(served, "GET", "/v1/models", key=served.keys["beta"])).status_code == 200
    assert other not in (await call(served, "GET", KEYS)).text
    assert (await call(served, "GET", f"{KEYS}?after={other}")).json()["data"] == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "a", "sha256": "0" * 64}, "sha256"),
        ({"name": "a", "made_by": ""}, "made_by"),
        ({"name": "a", "expires_at": 1}, "expires_at"),
        ({"name": "a", "limits": {"tokens": 1}}, "limits.tokens"),
        ({"name": "a", "scopes": {"endpoints": ["/admin/v1"]}}, "scopes.endpoints"),
    ],
)
async def test_a_wrong_field_is_named(served: Served, body: dict[str, Any], param: str) -> None:
    answer = await call(served, "POST", KEYS, body)

    assert error_of(answer) == (400, "invalid_request_error")
    assert answer.json()["error"]["param"] == param


async def test_a_tenant_has_at_most_so_many_keys(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_service, "MOST_KEYS", 2)
    key = await made(served)
    await call(served, "DELETE", f"{KEYS}/{key['id']}")  # a revoked key counts too

    for path in (KEYS, f"{KEYS}/{served.keys['acme'].split('-')[1]}/rotate"):
        body = {"name": "app"} if path == KEYS else None
        assert error_of(await call(served, "POST", path, body)) == (400, "request_exceeds_limit")


@pytest.fixture
async def with_tokens(valkey_url: str) -> AsyncIterator[Served]:
    async with issuing() as issuer, serving(settings(valkey_url, section={"issuers": (issuer.section(),)})) as opened:
        await opened.tenant("acme", **MANAGED)
        yield opened


async def test_a_token_manages_no_keys_and_its_way_is_the_operators(with_tokens: Served) -> None:
    served, way = with_tokens, Delegation(via="issuer:login", tenant="acme").key_id
    me = (await call(served, "GET", "/v1/me", key=token())).json()

    assert (me["tenant"], me["key"]["via"], me["may_manage_keys"]) == ("acme", "issuer:login", False)
    assert error_of(await call(served, "POST", KEYS, {"name": "app"}, token())) == (403, "endpoint_not_allowed")
    assert (await call(served, "DELETE", f"{KEYS}/{way}")).status_code in (403, 404)
    assert (await call(served, "GET", "/v1/me", key=token())).status_code == 200


@pytest.mark.parametrize(
    ("own", "other", "scope"),
    [
        (Scopes(), Scopes(), None),
        (Scopes(act_as=("a",)), Scopes(), "act_as"),
        (Scopes(), Scopes(lanes=("latency",)), "lanes"),
        (Scopes(models=()), Scopes(models=("a",)), None),
        (Scopes(endpoints=("/v1/chatty",)), Scopes(endpoints=("/v1/chat",)), "endpoints"),
        (Scopes(endpoints=("/v1/chat/completions",)), Scopes(endpoints=("/v1/chat",)), None),
        (Scopes(cidrs=("10.1.0.0/16", "fd00::/16")), Scopes(cidrs=("10.0.0.0/8", "fd00::/8")), None),
        (Scopes(cidrs=("0.0.0.0/0",)), Scopes(cidrs=("::/0",)), "cidrs"),
        (Scopes(cidrs=("10.0.0.0/7",)), Scopes(cidrs=("10.0.0.0/8",)), "cidrs"),
    ],
)
def test_scopes_compare_entry_by_entry(own: Scopes, other: Scopes, scope: str | None) -> None:
    assert exceeding(own, other) == scope


def test_a_key_of_an_earlier_version_was_made_by_an_operator() -> None:
    assert ApiKey(id="k", tenant="acme", created_at=0.0).made_by == ""
