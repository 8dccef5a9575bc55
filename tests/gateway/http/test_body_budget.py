"""How many bytes of bodies are held: taken before they are read, given back whatever becomes of them."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from fairlane.gateway.errors import ApiError
from fairlane.gateway.http import body_budget
from fairlane.gateway.http.body_budget import TRIM_AFTER_BYTES, BodyBudget, BodyHold, Trimmer
from fairlane.scheduler.protocol.settings import ByteSize
from tests.support.gateway.served import ASKED, CHAT, COMPLETIONS, WAIT_S, Served, error_of, serving, settings, until

pytestmark = pytest.mark.anyio
BODY, TENANT, PROCESS = 1_000_000, 3_000_000, 8_000_000
SECTION = {
    "max_body_bytes": ByteSize(BODY),
    "tenant_body_bytes": ByteSize(TENANT),
    "body_bytes": ByteSize(PROCESS),
}


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url, section=SECTION)) as opened:
        for name in ("acme", "globex", "initech", "umbrella"):
            await opened.tenant(name)
        yield opened


def held_bytes(served: Served) -> int:
    return served.resources.ports.bodies.held_bytes


@asynccontextmanager
async def sending(
    served: Served, framing: str, part: bytes, tenant: str = "acme"
) -> AsyncIterator[asyncio.StreamReader]:
    """A connection that has sent a part of a body, and sends no more."""
    host, port = served.server.servers[0].sockets[0].getsockname()[:2]
    reader, writer = await asyncio.open_connection(host, port)
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {served.keys[tenant]}\r\n{framing}\r\n\r\n"
    writer.write(head.encode() + part)
    try:
        yield reader
    finally:
        writer.transport.abort()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], str]:
    """Status, headers and code of a refusal."""
    async with asyncio.timeout(WAIT_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name: value for name, _, value in (line.partition(": ") for line in head[1:])}
        body = await reader.readexactly(int(headers["content-length"]))
    return int(head[0].split()[1]), headers, json.loads(body)["error"]["code"]


async def test_an_unfinished_body_holds_what_it_declares_and_the_next_is_refused_unread(served: Served) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(TENANT // BODY):
            await stack.enter_async_context(sending(served, f"content-length: {BODY}", b"{"))
        await until(lambda: held_bytes(served) == TENANT)

        more = await stack.enter_async_context(sending(served, f"content-length: {BODY}", b"{"))
        status, headers, code = await answer(more)

        assert (status, code) == (429, "concurrency_limit_exceeded")
        assert int(headers["retry-after"]) >= 1
        assert (await served.post(CHAT, ASKED, tenant="globex")).status_code == 200
        assert held_bytes(served) == TENANT
    await until(lambda: held_bytes(served) == 0)
    assert (await served.post(CHAT, ASKED)).status_code == 200


async def test_a_body_without_a_length_holds_what_has_come(served: Served) -> None:
    part = b"%x\r\n%b\r\n" % (BODY - 1, b" " * (BODY - 1))
    async with AsyncExitStack() as stack:
        for _ in range(TENANT // BODY):
            await stack.enter_async_context(sending(served, "transfer-encoding: chunked", part))
        await until(lambda: held_bytes(served) == (TENANT // BODY) * (BODY - 1))

        more = await stack.enter_async_context(sending(served, "transfer-encoding: chunked", part))

        assert (await answer(more))[::2] == (429, "concurrency_limit_exceeded")


async def test_over_the_processs_budget_all_are_told_to_come_again_but_small_bodies_pass(served: Served) -> None:
    async with AsyncExitStack() as stack:
        for tenant in ("acme", "globex", "initech"):
            for _ in range(TENANT // BODY):
                await stack.enter_async_context(sending(served, f"content-length: {BODY}", b"{", tenant))
        await until(lambda: held_bytes(served) > PROCESS * 7 // 8 - BODY)

        more = await stack.enter_async_context(sending(served, f"content-length: {BODY}", b"{", "umbrella"))
        status, headers, code = await answer(more)

        assert (status, code) == (503, "overloaded_memory")
        assert int(headers["retry-after"]) >= 1
        assert (await served.post(CHAT, ASKED, tenant="umbrella")).status_code == 200


@pytest.mark.parametrize("headers", [{}, {"idempotency_key": "once"}])
async def test_a_body_is_given_back_once_it_is_prompts_and_not_when_they_are_answered(
    served: Served, headers: dict[str, str]
) -> None:
    served.worker.limit = 0
    long = {**ASKED, "metadata": {"padding": " " * 500}, "max_tokens": 4}

    asking = asyncio.create_task(served.post(CHAT, long, **headers))
    await until(lambda: bool(served.resources.fleet.dispatcher.jobs))

    assert held_bytes(served) == 0
    served.worker.limit = None
    assert (await asking).status_code == 200


async def test_nothing_of_a_stranger_is_read(served: Served) -> None:
    served.keys["nobody"] = "fl-00000000-nothing"
    async with sending(served, f"content-length: {BODY}", b"{", "nobody") as reader:
        assert (await answer(reader))[::2] == (401, "invalid_api_key")
        assert held_bytes(served) == 0


async def test_a_chat_may_be_as_large_as_its_context_makes_use_of(served: Served) -> None:
    [model] = served.resources.fleet.cache.models.values()
    most = 64 * 1024 + model.context_length * 16

    async with sending(served, f"content-length: {BODY}", b"") as reader:  # as many prompts as there may be
        await until(lambda: held_bytes(served) == BODY)
        assert not reader.at_eof()
    for size, code in ((most, "context_length_exceeded"), (most + 1, "request_too_large")):
        empty = json.dumps({**ASKED, "messages": [{"role": "user", "content": ""}]}).encode()
        body = empty.replace(b'""', b'"%b"' % (b"x" * (size - len(empty))))
        assert error_of(await served.post(CHAT, body))[1] == code


def take(budget: BodyBudget, *sizes: tuple[str, int]) -> list[str | None]:
    """How each claim goes, one after the other."""
    told: list[str | None] = []
    for tenant, size in sizes:
        try:
            BodyHold(budget).claim(tenant, size)
        except ApiError as error:
            told.append(error.code)
        else:
            told.append(None)
    return told


def test_the_last_part_of_the_budget_is_for_small_bodies() -> None:
    sizes: Sequence[tuple[str, int]] = [("a", 700_000), ("b", 200_000), ("b", 60_000), ("c", 60_000), ("c", 181_000)]

    told = take(BodyBudget(most_bytes=1_000_000, most_tenant_bytes=800_000), *sizes)

    assert told == [None, "overloaded_memory", None, None, "overloaded_memory"]


def test_what_came_before_its_sender_was_known_counts_once() -> None:
    budget = BodyBudget(most_bytes=100, most_tenant_bytes=100)
    hold = BodyHold(budget)

    assert hold.takes(10)
    assert (budget.held_bytes, budget.of_tenant("a")) == (10, 0)
    hold.claim("a", 40)
    assert hold.takes(30)
    assert (budget.held_bytes, budget.of_tenant("a")) == (40, 40)
    assert hold.takes(5)
    assert (budget.held_bytes, budget.of_tenant("a")) == (45, 45)
    hold.release()
    hold.release()
    assert (budget.held_bytes, budget.of_tenant("a"), hold.takes(1)) == (0, 0, False)


def test_a_body_that_found_no_room_takes_nothing_more() -> None:
    budget = BodyBudget(most_bytes=100, most_tenant_bytes=100)
    hold = BodyHold(budget)

    assert not hold.takes(101)
    assert not hold.takes(1)
    with pytest.raises(ApiError, match="Too many bodies"):
        hold.claim("a", 10)
    assert budget.held_bytes == 0


async def test_what_was_freed_as_the_loop_closes_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_budget, "REST_S", 0.0)
    told: list[str] = []

    async def closing() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context["message"]))
        await loop.shutdown_default_executor()
        Trimmer().freed(TRIM_AFTER_BYTES)
        await asyncio.sleep(0.01)

    await asyncio.to_thread(asyncio.run, closing())

    assert told == []
