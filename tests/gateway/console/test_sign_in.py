"""Signing in by an identity provider: once, by the browser that began, with the role that its groups give."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import pytest

from fairlane.common.settings_error import SettingsError
from fairlane.gateway.config import GatewaySection
from fairlane.gateway.control.operators.settings import SignInSection, check_sign_in
from tests.support.gateway.provider import Provider, providing
from tests.support.gateway.served import WAIT_S, Served, gateway, settings

pytestmark = pytest.mark.anyio

ME = "/admin/v1/me"


@dataclass
class Desk:
    """A gateway, its provider, and one browser."""

    served: Served
    provider: Provider
    browser: httpx.AsyncClient

    async def begin(self) -> dict[str, str]:
        """What the provider sends the browser back with."""
        sent = await self.browser.get("/console/sign-in")
        assert sent.status_code == 303, sent.text
        return self.provider.consent(sent.headers["location"])

    async def back(self, answer: dict[str, str]) -> httpx.Response:
        return await self.browser.get("/console/callback", params=answer)

    async def refused(self, answer: dict[str, str]) -> int:
        """The status of a page that says why not; nobody is signed in."""
        page = await self.back(answer)
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert (await self.browser.get(ME)).status_code == 401
        return page.status_code


@pytest.fixture
async def desk(valkey_url: str) -> AsyncIterator[Desk]:
    async with providing() as provider:
        provider.redirect_url = "http://127.0.0.1/console/callback"
        chosen = settings(valkey_url, section={"sign_in": provider.section()})
        async with gateway(chosen) as served, httpx.AsyncClient(base_url=served.url, timeout=WAIT_S) as browser:
            yield Desk(served, provider, browser)


async def test_a_user_signs_in_works_and_signs_out(desk: Desk) -> None:
    answer = await desk.begin()
    back = await desk.back(answer)
    me = (await desk.browser.get(ME)).json()
    own = {"origin": desk.served.url, "x-fairlane-csrf": "1"}
    suspended = await desk.browser.post("/admin/v1/tenants/none/suspend", headers=own)
    deleted = await desk.browser.delete("/admin/v1/tenants/none", headers=own)

    assert (back.status_code, back.headers["location"]) == (303, "/")
    session, forgotten = back.headers.get_list("set-cookie")
    assert "HttpOnly; SameSite=Strict" in session
    assert forgotten.startswith("fairlane-sign-in=;")
    assert me == {"name": "ada@example.com", "role": "operator", "kind": "user"}
    assert (suspended.status_code, deleted.status_code) == (404, 403)
    assert (await desk.browser.delete("/console/session", headers=own)).status_code == 204
    assert (await desk.browser.get(ME)).status_code == 401


async def test_the_audit_log_names_the_user(desk: Desk) -> None:
    desk.provider.user["groups"] = ["everyone", "leads"]
    await desk.back(await desk.begin())
    own = {"origin": desk.served.url, "x-fairlane-csrf": "1"}
    await desk.browser.post("/admin/v1/tenants", json={"id": "acme"}, headers=own)

    made, signed_in = (await desk.browser.get("/admin/v1/audit")).json()["data"]
    assert (made["action"], made["actor"]) == ("tenant.create", "user:ada@example.com")
    assert (signed_in["action"], signed_in["actor"]) == ("session.create", "user:ada@example.com")


async def test_a_replayed_answer_is_refused_before_the_provider_is_asked(desk: Desk) -> None:
    answer = await desk.begin()
    kept = dict(desk.browser.cookies)
    await desk.back(answer)
    desk.browser.cookies.clear()
    desk.browser.cookies.update(kept)

    assert await desk.refused(answer) == 401
    assert desk.provider.exchanges == 1


FORGED: list[dict[str, str]] = [
    {"state": "x" * 43},
    {"state": ""},
    {"code": ""},
    {"code": "x" * 5_000},
    {"iss": "https://elsewhere.example.com"},
    {"error": "access_denied", "code": ""},
]


async def test_a_forged_answer_is_refused_before_the_provider_is_asked(desk: Desk) -> None:
    for changed in FORGED:
        assert await desk.refused({**await desk.begin(), **changed}) == 401, changed
    assert desk.provider.exchanges == 0


async def test_another_browser_s_answer_is_refused(desk: Desk) -> None:
    answer = await desk.begin()
    for cookie in ("", ".", "a.b", "x" * 5_000, "AAAA.AAAA"):
        desk.browser.cookies.clear()
        desk.browser.cookies.set("fairlane-sign-in", cookie)
        assert await desk.refused(answer) == 401, cookie
    assert desk.provider.exchanges == 0


async def test_a_cookie_that_was_tampered_with_is_refused(desk: Desk) -> None:
    answer = await desk.begin()
    kept = desk.browser.cookies["fairlane-sign-in"]
    for forged in (kept[:-2] + "AA", "A" + kept[1:]):
        desk.browser.cookies.clear()
        desk.browser.cookies.set("fairlane-sign-in", forged)
        assert await desk.refused(answer) == 401


async def test_a_code_that_the_provider_does_not_know_is_refused(desk: Desk) -> None:
    assert await desk.refused({**await desk.begin(), "code": "made-up"}) == 401


CLAIMS: list[tuple[dict[str, Any], int]] = [
    ({"nonce": "another"}, 401),
    ({"nonce": None}, 401),
    ({"aud": "somebody-else"}, 401),
    ({"aud": ["the-console", "x"], "azp": "x"}, 401),
    ({"iss": "https://elsewhere.example.com"}, 401),
    ({"exp": 1_000_000_000}, 401),
    ({"sub": None}, 401),
    ({"groups": ["strangers"]}, 403),
    ({"groups": None}, 403),
    ({"header": {"typ": "logout+jwt"}}, 401),
    ({"header": {"kid": "unknown"}}, 401),
]


async def test_a_token_that_is_not_ours_signs_nobody_in(desk: Desk) -> None:
    for claims, status in CLAIMS:
        desk.provider.user = {"email": "ada@example.com", "groups": ["sre"], **claims}
        assert await desk.refused(await desk.begin()) == status, claims


WRONG: list[tuple[int, bytes | None, int]] = [
    (500, None, 503),
    (200, b"{}", 401),
    (200, b"[" * 10_000, 401),
    (200, b"x" * 300_000, 503),
    (302, None, 401),
]


async def test_what_a_provider_answers_wrong_is_told_and_signs_nobody_in(desk: Desk) -> None:
    for status, body, told in WRONG:
        desk.provider.status, desk.provider.body = status, body
        assert await desk.refused(await desk.begin()) == told, status


async def test_a_name_with_markup_is_kept_as_it_is_and_an_odd_one_is_not_taken(desk: Desk) -> None:
    desk.provider.user["email"] = "<b>ada</b>"
    await desk.back(await desk.begin())
    assert (await desk.browser.get(ME)).json()["name"] == "<b>ada</b>"

    desk.provider.user["email"] = "\u202eada"
    await desk.back(await desk.begin())
    assert (await desk.browser.get(ME)).json()["name"] == "ada", "the subject instead"

    desk.provider.user |= {"email": "root@example.com", "email_verified": False}
    await desk.back(await desk.begin())
    assert (await desk.browser.get(ME)).json()["name"] == "ada"

    desk.provider.user |= {"email": "x" * 10_000, "email_verified": True}
    await desk.back(await desk.begin())
    assert len((await desk.browser.get(ME)).json()["name"]) == 200


async def test_a_session_ends_where_the_settings_give_other_roles(desk: Desk, valkey_url: str) -> None:
    await desk.back(await desk.begin())
    assert (await desk.browser.get(ME)).status_code == 200
    changed = desk.provider.section(roles={"sre": "viewer"})
    async with gateway(settings(valkey_url, section={"sign_in": changed})) as other, other.http as client:
        client.cookies = desk.browser.cookies
        assert (await client.get(ME)).status_code == 401


async def test_the_console_learns_how_one_may_sign_in(desk: Desk, valkey_url: str) -> None:
    told = (await desk.browser.get("/console/session")).json()
    async with gateway(settings(valkey_url)) as other, other.http as client:
        without = (await client.get("/console/session")).json()
        pages = [(await client.get(path)).status_code for path in ("/console/sign-in", "/console/callback")]

    assert told == {"operator": None, "oidc": {"name": "your identity provider", "url": "/console/sign-in"}}
    assert without == {"operator": None, "oidc": None}
    assert pages == [404, 404]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"authorize_url": "http://login.example.com"}, "authorize_url"),
        ({"token_url": ""}, "token_url"),
        ({"jwks_url": "file:///keys"}, "jwks_url"),
        ({"redirect_url": "https://console.example.com/elsewhere"}, "redirect_url"),
        ({"client_id": ""}, "client_id"),
        ({"scopes": ["email"]}, "scopes"),
        ({"roles": {}}, "roles"),
        ({"roles_claim": ""}, "roles_claim"),
    ],
)
async def test_settings_that_cannot_work_stop_the_start(changed: dict[str, object], named: str) -> None:
    provider = Provider("https://login.example.com", "https://console.example.com/console/callback")
    check_sign_in(provider.section())

    with pytest.raises(SettingsError, match=named):
        check_sign_in(provider.section(**changed))


async def test_the_callback_is_below_the_prefix() -> None:
    address = "https://console.example.com/llm/console/callback"
    check_sign_in(Provider("https://login.example.com", address).section(), "/llm")

    with pytest.raises(SettingsError, match="redirect_url: its path must be /llm/console/callback"):
        check_sign_in(Provider("https://login.example.com", address.replace("/llm", "")).section(), "/llm")


async def test_a_role_that_is_none_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="root"):
        Provider().section(roles={"sre": "root"})


async def test_without_a_provider_nothing_is_asked_of_the_settings() -> None:
    check_sign_in(SignInSection())
    assert GatewaySection().sign_in.issuer == ""
