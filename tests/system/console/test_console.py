"""The console as operators use it: a real browser before a whole server with the real model, checked by axe-core."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.system import browser
from tests.support.system.browser import Console
from tests.support.system.harness import ADMIN_KEY, MODEL, Server

pytestmark = [pytest.mark.slow, pytest.mark.system]
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
if browser.CHROMIUM is None:
    pytest.skip("there is no chromium", allow_module_level=True)

WIDTHS = (360, 1440, 2560)
VIEWS = (
    "overview",
    "kv",
    "requests",
    "workers",
    "models",
    "batches",
    "tenants",
    "tenants/shown",
    "tenants/shown?tab=keys",
    "tenants/shown?tab=limits",
    "tenants/shown?tab=settings",
    "tenants/shown?tab=explain",
    "money",
    "access",
    "audit",
    "playground",
    "simulate",
)
HOSTILE = '<img src=x onerror="document.title=1">\u05d0\u05d1\u05d2' + "w" * 150


@pytest.fixture(scope="module")
def served(small_server: Server) -> Server:
    """The server whose latency lane has to preempt, with the tenant that the views show."""
    small_server.tenant("shown", limits={"tokens_per_day": 1_000_000, "requests_per_minute": 600})
    return small_server


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.browsing() as started:
        yield started


@pytest.fixture
def owner(served: Server, chromium: Any) -> Iterator[Console]:
    """Signed in with the admin key; nothing may go wrong in the browser."""
    with browser.console(chromium, served.admin_url) as opened:
        opened.sign_in(ADMIN_KEY)
        yield opened
        assert not opened.faults


@contextmanager
def load(server: Server, key: str, *, streams: int, tokens: int) -> Iterator[None]:
    """Streams on the throughput lane, one after the other, for as long as the block runs."""
    over = threading.Event()

    def keep_on() -> None:
        with server.sdk(key, max_retries=0) as client:
            while not over.is_set():
                client.completions.create(
                    model=MODEL,
                    prompt="Once upon a time",
                    max_tokens=tokens,
                    extra_body={"ignore_eos": True},
                    extra_headers={"x-fairlane-lane": "throughput"},
                )

    with ThreadPoolExecutor(streams) as pool:
        running = [pool.submit(keep_on) for _ in range(streams)]
        try:
            yield
        finally:
            over.set()
        for each in running:
            each.result()


def test_who_has_no_key_sees_nothing_and_who_signs_out_sees_nothing_more(served: Server, chromium: Any) -> None:
    with browser.console(chromium, served.admin_url) as opened:
        opened.page.goto(f"{served.admin_url}/#/tenants")
        opened.page.get_by_label("Admin key or token").fill("wrong" * 8)
        opened.page.get_by_role("button", name="Sign in", exact=True).click()
        opened.page.get_by_text("This key is not accepted.").wait_for()

        opened.sign_in(ADMIN_KEY)
        opened.page.get_by_role("button", name="Sign out").click()
        opened.page.get_by_text("You are signed out.").wait_for()
        opened.go("tenants")
        opened.page.reload()
        opened.heading("Sign in")
        assert not opened.page.get_by_role("navigation", name="Console").is_visible()


def test_a_role_finds_only_what_it_may_do(served: Server, owner: Console, chromium: Any) -> None:
    page = owner.page
    owner.go("access")
    page.get_by_role("button", name="New token").click()
    page.get_by_label("Name", exact=False).first.fill("Reader")
    page.get_by_role("button", name="Make token").click()
    token = page.get_by_label("Token Reader").input_value()
    page.get_by_role("button", name="I have kept it").click()

    with browser.console(chromium, served.admin_url) as reader:
        reader.sign_in(token)
        assert reader.page.locator("#who").inner_text().split() == ["Reader", "viewer"]
        assert not reader.page.get_by_role("link", name="Access").count()
        reader.go("workers")
        reader.page.get_by_text("serving").wait_for()
        assert not reader.page.get_by_role("button", name="Drain").count()
        reader.go("tenants/shown?tab=keys")
        reader.heading("shown")
        assert not reader.page.get_by_role("button", name=re.compile("New key|Suspend|Delete|Revoke")).count()
        reader.go("tenants/shown?tab=limits")
        reader.page.get_by_text("Your role may see limits").wait_for()
        assert not reader.faults

        page.get_by_role("button", name="Revoke").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        page.get_by_text("There are no tokens yet").wait_for()
        reader.expected = {401}
        reader.go("overview")
        reader.heading("Sign in")


def test_numbers_are_live_under_load(served: Server, owner: Console) -> None:
    lane = owner.page.locator("section.lane.is-throughput")
    with load(served, served.tenant("loader"), streams=2, tokens=60):
        lane.locator(".figure", has_text="Running").locator(".value", has_text=re.compile("[1-9]")).wait_for()
        owner.page.get_by_role("row", name="loader").wait_for()


def test_a_tenant_and_a_key_are_made_and_the_key_works(served: Server, owner: Console) -> None:
    page = owner.page
    owner.expected = {400}
    owner.go("tenants")
    page.get_by_role("button", name="New tenant").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Id").fill("Not An Id")
    dialog.get_by_role("button", name="Make tenant").click()
    dialog.locator("[aria-invalid=true] ~ .field-error", has_text="`id`").wait_for()
    dialog.get_by_label("Name", exact=True).fill("\u202e" + HOSTILE)
    dialog.get_by_label("Id").fill("bakery")
    dialog.get_by_role("button", name="Make tenant").click()
    dialog.locator("[aria-invalid=true] ~ .field-error", has_text="`name`").wait_for()
    dialog.get_by_label("Name", exact=True).fill(HOSTILE)
    dialog.get_by_role("button", name="Make tenant").click()

    owner.heading("bakery")
    page.get_by_role("button", name="New key").click()
    page.get_by_role("dialog").get_by_label("Name").fill(HOSTILE)
    page.get_by_role("dialog").get_by_role("button", name="Make key").click()
    key = page.get_by_label("Key <img").input_value()
    page.get_by_role("button", name="I have kept it").click()

    assert not page.get_by_text(key).count()
    with served.sdk(key) as client:
        assert MODEL in [model.id for model in client.models.list()]
    assert page.locator("main img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_quota_is_set_with_the_api_s_words_and_a_429_is_seen(served: Server, owner: Console) -> None:
    page = owner.page
    key = served.tenant("tight")
    owner.expected = {400, 429}
    owner.go("tenants/tight?tab=limits")
    figure = page.get_by_label("Requests per minute", exact=True)
    figure.fill("many")
    page.get_by_role("button", name="Save limits").click()
    page.locator("[aria-invalid=true] ~ .field-error", has_text="requests_per_minute").wait_for()
    figure.fill("2")
    page.get_by_role("button", name="Save limits").click()
    page.get_by_text("Limits are saved.").first.wait_for()

    owner.go("playground")
    send(owner, key)
    page.get_by_text("done").nth(1).wait_for()
    page.get_by_role("button", name="Send on both lanes").click()
    page.get_by_text("429 rate_limit_exceeded").first.wait_for()


def test_the_playground_streams_on_both_lanes(served: Server, owner: Console) -> None:
    owner.go("playground")
    send(owner, served.tenant("player"))
    for lane in ("latency", "throughput"):
        pane = owner.page.locator("section.pane", has_text=f"{lane} lane")
        pane.get_by_text("done", exact=True).wait_for()
        assert pane.locator(".stream").inner_text()
        assert "12 tokens" in pane.locator(".figures-line").inner_text()


@pytest.mark.thorough
def test_a_preemption_is_seen_on_the_map_and_explained(served: Server, owner: Console) -> None:
    """Throughput work fills the pool; a long prompt of the latency lane takes blocks from it."""
    page = owner.page
    urgent = served.tenant("urgent")
    owner.go("kv")
    with load(served, served.tenant("patient"), streams=3, tokens=160), served.sdk(urgent, max_retries=0) as client:
        page.get_by_role("row", name=re.compile("patient.*running.*device")).first.wait_for()
        is_seen, preempted = False, None
        while not (is_seen and preempted):
            client.completions.create(
                model=MODEL,
                prompt="river market lantern " * 100,
                max_tokens=8,
                extra_headers={"x-fairlane-lane": "latency"},
            )
            is_seen |= page.get_by_role("row", name=re.compile("patient.*(waiting|swapped)")).count() > 0
            preempted = displaced(served, "patient", "urgent")
        owner.go("requests?tenant=patient")
        page.get_by_role("row", name=re.compile("preempted [0-9]")).first.wait_for()
        owner.go(f"requests/{preempted}")
        page.locator("section.why", has_text="preempted").wait_for()
        page.get_by_role("row", name=re.compile("latency urgent")).first.wait_for()


def displaced(server: Server, tenant: str, by: str) -> str | None:
    """Id of a request of the tenant that had to yield to the other; None: there is none yet."""
    with server.admin() as admin:
        for each in admin.get("/requests", params={"tenant": tenant}).json()["data"]:
            told = admin.get(f"/requests/{each['id']}").json() if each["preemptions"] else {"preemptions": []}
            if any((one["cause"] or {}).get("tenant") == by for one in told["preemptions"]):
                return str(each["id"])
    return None


def answered(server: Server, tenant: str) -> str:
    """Id of a request that has ended, if possible of one that was preempted."""
    with server.sdk(server.tenant(tenant)) as client, server.admin() as admin:
        client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=4)
        while True:
            ended = [each for each in admin.get("/requests").json()["data"] if each["outcome"]]
            if ended:
                return str(max(ended, key=lambda each: each["preemptions"])["id"])


def send(console: Console, key: str) -> None:
    console.page.get_by_label("Tenant key").fill(key)
    console.page.get_by_label("Output at most").fill("12")
    console.page.get_by_role("button", name="Send on both lanes").click()


@pytest.mark.skipif(not browser.AXE.exists(), reason="axe-core is not installed")
@pytest.mark.parametrize(
    ("scheme", "swept"),
    [
        pytest.param("light", WIDTHS[:1], id="light"),
        pytest.param("light", WIDTHS[1:], id="light-wide", marks=pytest.mark.thorough),
        pytest.param("dark", WIDTHS, id="dark", marks=pytest.mark.thorough),
    ],
)
def test_axe_finds_nothing_in_any_view(
    request: pytest.FixtureRequest, served: Server, chromium: Any, scheme: str, swept: tuple[int, ...]
) -> None:
    """axe-core runs at the widths in `swept`. At every width words stand apart, and nothing scrolls sideways."""
    found: dict[str, list[str]] = {}
    ended = answered(served, f"seen-in-{request.node.callspec.id}")
    with browser.console(chromium, served.admin_url, scheme=scheme) as opened:
        opened.page.goto(f"{served.admin_url}/")
        opened.load_axe()
        opened.heading("Sign in")
        found["sign-in"] = opened.violations()
        opened.sign_in(ADMIN_KEY)
        opened.load_axe()
        for view in (*VIEWS, f"requests/{ended}"):
            opened.go(view)
            opened.page.locator(f".view-{view.partition('/')[0]} h1").wait_for()
            opened.page.locator("[aria-busy]").first.wait_for(state="hidden")
            for width in WIDTHS:
                opened.resize(width)
                wide = opened.page.evaluate("document.documentElement.scrollWidth")
                wrong = (opened.violations() if width in swept else []) + opened.crowded()
                found[f"{view} at {width}"] = wrong + (["it scrolls sideways"] if wide > width else [])
        for view, name in (("tenants", "New tenant"), ("tenants/shown?tab=keys", "New key"), ("access", "New token")):
            opened.go(view)
            opened.page.get_by_role("button", name=name).click()
            opened.page.get_by_role("dialog").wait_for()
            found[name] = opened.violations()
            opened.page.keyboard.press("Escape")
        opened.page.keyboard.press("Control+k")
        opened.page.get_by_role("combobox", name="Search").fill("s")
        opened.page.get_by_text("found", exact=False).first.wait_for()
        found["search"] = opened.violations()
        assert not opened.faults

    bad = [f"{view}: {each}" for view, what in found.items() for each in what]
    assert not bad, "\n".join(bad)
