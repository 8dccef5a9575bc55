"""Callers without a key of ours, on a whole gateway: what they may, what is counted, and who is refused."""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from fairlane.quotas.api_keys import Scopes
from fairlane.quotas.delegated_keys import Delegation
from fairlane.scheduler.protocol.settings import Networks
from tests.support.gateway.issuer import Issuer, issuing, token
from tests.support.gateway.served import ADMIN_KEY, ASKED, CHAT, SAID, Served, error_of, serving, settings

pytestmark = pytest.mark.anyio

LOCAL = Networks(["127.0.0.0/8"])
TENANT = "x-fairlane-tenant"
OPERATOR = {"authorization": f"Bearer {ADMIN_KEY}"}


@asynccontextmanager
async def served_with(url: str, **section: Any) -> AsyncIterator[Served]:
    shared = section.pop("shared", {})
    async with serving(settings(url, section=section, **shared)) as opened:
        for name in ("acme", "beta", "front"):
            await opened.tenant(name, scopes={"act_as": ["acme"]} if name == "front" else None)
        yield opened


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with issuing() as opened:
        yield opened


@pytest.fixture
async def served(valkey_url: str, issuer: Issuer) -> AsyncIterator[Served]:
    """Takes the issuer's tokens, and tenants that peers on this machine name."""
    section = issuer.section(tenants={"acme-org": "acme", "gone-org": "gone"})
    async with served_with(valkey_url, issuers=(section,), tenant_header_peers=LOCAL) as opened:
        yield opened


async def ask(served: Served, *headers: tuple[str, str], path: str = CHAT) -> httpx.Response:
    async with served.http as client:
        if path == CHAT:
            return await client.post(path, headers=list(headers), json=ASKED)
        return await client.get(path, headers=list(headers))


def bearing(secret: str) -> tuple[str, str]:
    return "authorization", f"Bearer {secret}"


async def test_a_token_is_served_and_counted_as_its_tenants_keys_are(served: Served) -> None:
    await served.resources.accounts.tenants.update("acme", {"limits": {"requests_per_minute": 3}})

    answers = [
        await ask(served, bearing(served.keys["acme"])),
        await ask(served, bearing(token())),
        await ask(served, ("x-api-key", token(sub="bob"))),
        await ask(served, bearing(token(sub="eve"))),
    ]

    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[1].json()["choices"][0]["message"]["content"] == SAID
    assert answers[1].headers["x-ratelimit-remaining-requests"] == "1"
    await served.landed()
    of_keys = [entry.key for entry in await served.entries("acme")]
    way = Delegation(via="issuer:login", tenant="acme").key_id
    assert (len(of_keys), of_keys.count(way)) == (3, 2)


async def test_a_groups_limit_is_of_all_its_members_together(valkey_url: str, issuer: Issuer) -> None:
    groups = [{"group": "interns", "limits": {"requests_per_minute": 1}}, {"group": "staff"}]
    async with served_with(valkey_url, issuers=(issuer.section(groups=groups),)) as served:
        answers = [
            await ask(served, bearing(token(sub="ada", groups=["interns"]))),
            await ask(served, bearing(token(sub="bob", groups=["interns"]))),
            await ask(served, bearing(token(sub="eve", groups=["staff"]))),
            await ask(served, bearing(token(sub="max", groups=["guests"]))),
        ]

        assert [answer.status_code for answer in answers] == [200, 429, 200, 403]
        assert answers[1].json()["error"]["limit"]["scope"] == "key"
        assert error_of(answers[3]) == (403, "tenant_not_allowed")


async def test_the_way_of_an_issuer_can_be_revoked_like_a_key(served: Served) -> None:
    assert (await ask(served, bearing(token()))).status_code == 200
    async with served.http as client:
        listed = (await client.get("/admin/v1/tenants/acme/keys", headers=OPERATOR)).json()["data"]
        (way,) = [key for key in listed if key["via"] == "issuer:login"]
        path = f"/admin/v1/tenants/acme/keys/{way['id']}"
        rotated = await client.post(f"{path}/rotate", headers=OPERATOR, json={})
        assert error_of(rotated) == (400, "invalid_request_error")
        assert (await client.delete(path, headers=OPERATOR)).status_code == 200

    assert error_of(await ask(served, bearing(token()))) == (401, "invalid_api_key")
    assert (await ask(served, bearing(served.keys["acme"]))).status_code == 200


async def test_a_way_is_there_again_where_its_tenant_was_made_anew(served: Served) -> None:
    assert (await ask(served, bearing(token()))).status_code == 200
    async with served.http as client:
        await client.delete("/admin/v1/tenants/acme", headers=OPERATOR)
        assert error_of(await ask(served, bearing(token()))) == (401, "invalid_api_key")
        await client.post("/admin/v1/tenants", headers=OPERATOR, json={"id": "acme"})

    assert (await ask(served, bearing(token()))).status_code == 200


async def test_a_token_of_a_tenant_that_is_not_there_or_suspended_is_refused(served: Served) -> None:
    assert error_of(await ask(served, bearing(token(org="gone-org")))) == (401, "invalid_api_key")
    assert (await ask(served, bearing(token()))).status_code == 200
    await served.resources.accounts.tenants.suspend("acme")
    served.resources.accounts.authenticator.forget()
    assert error_of(await ask(served, bearing(token()))) == (403, "tenant_suspended")


@pytest.mark.parametrize(
    ("changed", "status", "code"),
    [
        ({"exp": -60}, 401, "token_expired"),
        ({"nbf": 60}, 401, "token_not_yet_valid"),
        ({"aud": "payroll"}, 401, "wrong_audience"),
        ({"kid": "two"}, 401, "unknown_signing_key"),
        ({"header": {"jku": "https://evil.example/keys"}}, 401, "invalid_token"),
        ({"org": "beta"}, 403, "tenant_not_allowed"),
        ({"filler": "x" * 20_000}, 401, "invalid_token"),
    ],
)
async def test_what_is_wrong_with_a_token_is_told_by_its_code_and_nowhere_logged(
    served: Served, caplog: pytest.LogCaptureFixture, changed: dict[str, Any], status: int, code: str
) -> None:
    caplog.set_level(logging.DEBUG)
    now = int(time.time())
    moved = {name: now + value if name in ("exp", "nbf") else value for name, value in changed.items()}
    given = token(**moved)

    answer = await ask(served, bearing(given), path="/v1/models")

    assert error_of(answer) == (status, code)
    told = ("retry-after",) if code == "token_not_yet_valid" else ("x-should-retry",)
    assert tuple(name for name in ("retry-after", "x-should-retry") if name in answer.headers) == told
    assert not any(part in caplog.text + answer.text for part in [*given.split("."), "evil.example", "payroll"])


async def test_a_token_opens_nothing_of_the_operators(served: Served) -> None:
    assert error_of(await ask(served, bearing(token()), path="/admin/v1/tenants")) == (401, "invalid_api_key")


async def test_without_issuers_a_token_is_no_key(valkey_url: str) -> None:
    async with served_with(valkey_url) as served:
        assert error_of(await ask(served, bearing(token()))) == (401, "invalid_api_key")


async def test_requests_are_served_while_the_issuer_is_away(served: Served, issuer: Issuer) -> None:
    assert (await ask(served, bearing(token()))).status_code == 200
    issuer.status, asked = 500, issuer.asked

    assert (await ask(served, bearing(token(sub="bob")))).status_code == 200
    assert issuer.asked == asked


async def test_an_idempotency_key_is_of_one_token_alone(served: Served) -> None:
    once = ("idempotency-key", "same")
    ada, bob = token(sub="ada"), token(sub="bob")
    first, again, other = [await ask(served, bearing(secret), once) for secret in (ada, ada, bob)]

    assert again.json()["id"] == first.json()["id"]
    assert other.status_code == 200
    assert other.json()["id"] != first.json()["id"]


async def test_a_gateway_in_front_names_the_tenant_that_is_counted(served: Served) -> None:
    answer = await ask(served, bearing(served.keys["front"]), (TENANT, "acme"))

    assert answer.status_code == 200
    await served.landed()
    assert (len(await served.entries("acme")), len(await served.entries("front"))) == (1, 0)


@pytest.mark.parametrize(
    ("brought", "status", "code"),
    [
        (("front", "", "beta"), 403, "tenant_not_allowed"),
        (("beta", "", "acme"), 401, "identity_conflict"),
        (("token", "", "beta"), 401, "identity_conflict"),
        (("token", "beta", ""), 401, "identity_conflict"),
        (("beta", "token", ""), 401, "identity_conflict"),
        (("beta", "front", "acme"), 401, "identity_conflict"),
        (("front", "token", "acme"), 401, "identity_conflict"),
        (("front", "", "acme beta"), 400, "invalid_request_error"),
        (("front", "", ""), 200, ""),
        (("front", "front", "acme"), 200, ""),
        (("beta", "", "beta"), 200, ""),
        (("token", "", "acme"), 200, ""),
    ],
)
async def test_of_two_identities_in_one_request_none_is_chosen(
    served: Served, brought: tuple[str, str, str], status: int, code: str
) -> None:
    """A key or a token, another beside it in Anthropic's header, and a tenant by name; twice: what is remembered of
    one way to be somebody must not serve another."""
    tokened = token()
    secrets = {**served.keys, "token": tokened, "": ""}
    own, also, named = brought
    for plain in (served.keys["acme"], served.keys["front"], tokened):
        assert (await ask(served, bearing(plain), path="/v1/models")).status_code == 200
    headers = [bearing(secrets[own])]
    headers += [("x-api-key", secrets[also])] if also else []
    headers += [(TENANT, named)] if named else []

    for _ in range(2):
        answer = await ask(served, *headers, path="/v1/models")
        assert answer.status_code == status
        assert status == 200 or error_of(answer) == (status, code)


async def test_two_tenants_in_two_headers_are_two_identities(served: Served) -> None:
    answer = await ask(served, bearing(served.keys["front"]), (TENANT, "acme"), (TENANT, "beta"))

    assert error_of(answer) == (401, "identity_conflict")


async def test_a_header_of_an_untrusted_peer_is_ignored_and_logged_once(
    valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served_with(valkey_url, tenant_header_peers=Networks(["10.9.0.0/16"])) as served:
        for _ in range(3):
            assert (await ask(served, bearing(served.keys["front"]), (TENANT, "acme"))).status_code == 200
        await served.landed()

        assert (len(await served.entries("acme")), len(await served.entries("front"))) == (0, 3)
        told = [line for line in caplog.messages if "is ignored from" in line]
        assert len(told) == 1
        assert "acme" not in told[0]


@pytest.mark.parametrize(("peers", "status"), [(Networks(["10.9.0.0/16"]), 200), (LOCAL, 403)])
async def test_an_address_that_a_proxy_names_makes_nobody_a_trusted_peer(
    valkey_url: str, peers: Networks, status: int
) -> None:
    """Who may name tenants is who holds the connection, whatever `x-forwarded-for` says. The key may not act as beta:
    where the header is read, that is refused."""
    async with served_with(valkey_url, tenant_header_peers=peers, shared={"trusted_proxies": LOCAL}) as served:
        headers = bearing(served.keys["front"]), (TENANT, "beta"), ("x-forwarded-for", "10.9.0.1")

        assert (await ask(served, *headers, path="/v1/models")).status_code == status


async def test_what_a_key_may_not_it_may_in_no_name(served: Served) -> None:
    tenant = await served.resources.accounts.tenants.get("front")
    assert tenant is not None
    scopes = {"act_as": ["acme"], "endpoints": ["/v1/models"], "models": ["tiny"]}
    narrow = (await served.resources.accounts.keys.create(tenant, {"scopes": scopes})).secret

    assert (await ask(served, bearing(narrow), (TENANT, "acme"), path="/v1/models")).status_code == 200
    assert error_of(await ask(served, bearing(narrow), (TENANT, "acme"))) == (403, "endpoint_not_allowed")

    await served.resources.accounts.tenants.suspend("front")
    served.resources.accounts.authenticator.forget()
    answer = await ask(served, bearing(narrow), (TENANT, "acme"), path="/v1/models")
    assert error_of(answer) == (403, "tenant_suspended")


async def test_a_revoked_key_acts_for_nobody(served: Served) -> None:
    headers = bearing(served.keys["front"]), (TENANT, "acme")
    assert (await ask(served, *headers, path="/v1/models")).status_code == 200
    tenant = await served.resources.accounts.tenants.get("front")
    assert tenant is not None
    (key,) = await served.resources.accounts.keys.list(tenant)
    await served.resources.accounts.keys.revoke(tenant, key.id)
    served.resources.accounts.authenticator.forget()

    assert error_of(await ask(served, *headers, path="/v1/models")) == (401, "invalid_api_key")


async def test_many_at_the_same_time_make_one_key_for_their_way(served: Served) -> None:
    answers = await asyncio.gather(
        *(ask(served, bearing(token(sub=str(number))), path="/v1/models") for number in range(20))
    )

    assert {answer.status_code for answer in answers} == {200}
    tenant = await served.resources.accounts.tenants.get("acme")
    assert tenant is not None
    ways = [key for key in await served.resources.accounts.keys.list(tenant) if key.via]
    assert [key.via for key in ways] == ["issuer:login"]
    assert ways[0].scopes == Scopes()


async def test_an_imported_key_is_served_beside_ours_and_no_second_identity(served: Served) -> None:
    imported = "sk-made.by.other-software"
    tenant = await served.resources.accounts.tenants.get("beta")
    assert tenant is not None
    await served.resources.accounts.keys.adopt(tenant, hashlib.sha256(imported.encode()).hexdigest(), {})

    assert (await ask(served, bearing(imported))).status_code == 200
    await served.landed()
    assert len(await served.entries("beta")) == 1
    assert error_of(await ask(served, bearing("sk-unknown"), path="/v1/models")) == (401, "invalid_api_key")
    both = bearing(served.keys["acme"]), ("x-api-key", imported)
    for _ in range(2):
        assert error_of(await ask(served, *both, path="/v1/models")) == (401, "identity_conflict")
    theirs = bearing(served.keys["acme"]), ("x-api-key", "sk-ant-theirs")
    assert (await ask(served, *theirs, path="/v1/models")).status_code == 200


async def test_an_alias_is_the_model_that_it_stands_for(served: Served) -> None:
    changes = {"model_aliases": {"gpt-4": "tiny", "gone": "never"}, "models": ["tiny"]}
    await served.resources.accounts.tenants.update("acme", changes)
    async with served.http as client:
        headers = {"authorization": f"Bearer {served.keys['acme']}"}
        answers = [
            await client.post(CHAT, headers=headers, json={**ASKED, "model": name}) for name in ("gpt-4", "gone")
        ]
        beta = {"authorization": f"Bearer {served.keys['beta']}"}
        other = await client.post(CHAT, headers=beta, json={**ASKED, "model": "gpt-4"})

    assert (answers[0].status_code, answers[0].json()["model"]) == (200, "tiny")
    assert error_of(answers[1]) == error_of(other) == (404, "model_not_found")
    await served.landed()
    assert [entry.model for entry in await served.entries("acme")] == ["tiny"]
