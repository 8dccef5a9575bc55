"""The overview as it changes: one computation for all who watch, and an end for who may not watch any more."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import redis.exceptions

from fairlane.gateway.control.admin.live import MOST_OF_AN_OPERATOR, MOST_WATCHERS, LiveHub
from fairlane.gateway.errors import ApiError, invalid_api_key
from fairlane.scheduler.protocol.block_map import STATES, BlockMap
from fairlane.scheduler.queue.registry import RedisRegistry
from tests.support.gateway.served import OPERATOR, Served, serving, settings, until

pytestmark = pytest.mark.anyio

LIVE = "/admin/v1/live"


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url)) as opened:
        yield opened


async def events(lines: AsyncIterator[str], count: int) -> list[tuple[str, Any]]:
    """The next events of a stream: names and data."""
    found, name = list[tuple[str, Any]](), ""
    async for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        if line.startswith("data: "):
            found.append((name, json.loads(line.removeprefix("data: "))))
            if len(found) == count:
                break
    return found


async def allowed() -> None:
    """Whoever watches may go on."""


async def nothing() -> object:
    """No worker tells a map."""
    return {"workers": []}


async def unchanged() -> bytes:
    """Nobody's rights have ended."""
    return b""


async def test_five_consoles_see_what_one_look_finds(served: Served) -> None:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(served.http)
        streams = [
            await stack.enter_async_context(client.stream("GET", f"{LIVE}?kv=false", headers=OPERATOR))
            for _ in range(5)
        ]
        assert [stream.headers["content-type"] for stream in streams] == ["text/event-stream"] * 5
        told = await asyncio.gather(*(events(stream.aiter_lines(), 2) for stream in streams))
        looks = served.resources.control.live.looks

    assert {name for each in told for name, _ in each} == {"overview"}
    assert len({body["at"] for each in told for _, body in each}) <= looks < 10
    assert told[0][0][1]["lanes"][0]["lane"] == "latency"
    await until(lambda: served.resources.control.live.count == 0)


async def test_nobody_without_a_key_watches(served: Served) -> None:
    async with served.http as client:
        answer = await client.get(LIVE)

    assert answer.status_code == 401
    assert served.resources.control.live.looks == 0


async def test_a_stream_ends_with_its_session(served: Served) -> None:
    served.resources.control.live._every_s = 0.1
    own = {"origin": served.url, "x-fairlane-csrf": "1"}
    async with served.http as client:
        await client.post("/console/session", headers=OPERATOR | own)
        async with client.stream("GET", LIVE) as stream:
            lines = stream.aiter_lines()
            await events(lines, 1)
            async with served.http as other:
                other.cookies = client.cookies
                assert (await other.delete("/console/session", headers=own)).status_code == 204
            async with asyncio.timeout(20):
                async for _ in lines:
                    pass

    await until(lambda: served.resources.control.live.count == 0)


async def test_a_gateway_that_stops_ends_its_streams(served: Served) -> None:
    async with served.http as client, client.stream("GET", LIVE, headers=OPERATOR) as stream:
        await events(stream.aiter_lines(), 1)
        await served.stop()


async def test_only_so_many_watch() -> None:
    hub = LiveHub(allowed, nothing, unchanged, most=2)
    first, _ = hub.enter("ada", allowed), hub.enter("bob", allowed)

    with pytest.raises(ApiError, match="maximum number of live streams") as refused:
        hub.enter("ada", allowed)
    assert refused.value.code == "overloaded"
    hub.leave(first)
    hub.enter("ada", allowed)
    await hub.aclose()


async def test_one_operator_leaves_room_for_others(served: Served) -> None:
    async with served.http as client:
        made = await client.post("/admin/v1/tokens", json={"name": "wall", "role": "viewer"}, headers=OPERATOR)
        viewer = {"authorization": f"Bearer {made.json()['token']}"}
        async with AsyncExitStack() as stack:
            for _ in range(MOST_OF_AN_OPERATOR):
                stream = await stack.enter_async_context(client.stream("GET", LIVE, headers=viewer))
                assert stream.status_code == 200
            refused = await client.get(LIVE, headers=viewer)
            other = await stack.enter_async_context(client.stream("GET", LIVE, headers=OPERATOR))

            assert refused.json()["error"]["code"] == "overloaded"
            assert other.status_code == 200
    assert 2 * MOST_OF_AN_OPERATOR <= MOST_WATCHERS


async def test_who_is_behind_gets_the_newest_alone() -> None:
    hub = LiveHub(allowed, nothing, unchanged)
    watcher = hub.enter("ada", allowed)
    for number in range(1_000):
        watcher.send("overview", b"%d\n" % number)

    frames = watcher.frames()
    assert await anext(frames) == b"999\n"
    await hub.aclose()
    assert [frame async for frame in frames] == []


async def test_nothing_is_computed_once_nobody_watches() -> None:
    hub = LiveHub(allowed, nothing, unchanged, every_s=0.001)
    watcher = hub.enter("ada", allowed)
    await until(lambda: hub.looks > 2)
    hub.leave(watcher)
    await until(lambda: hub._running is not None and hub._running.done())
    looks = hub.looks
    again = hub.enter("ada", allowed)
    await until(lambda: hub.looks > looks)
    hub.leave(again)
    await hub.aclose()


async def test_a_store_that_is_away_is_told_and_ends_nothing() -> None:
    failures: list[Exception] = [redis.exceptions.ConnectionError(), ValueError("a defect"), invalid_api_key()]

    async def look() -> object:
        if failures:
            raise failures.pop(0)
        return {"lanes": []}

    async def unsure() -> None:
        raise redis.exceptions.ConnectionError

    hub = LiveHub(look, nothing, unchanged, every_s=0.001)
    watcher = hub.enter("ada", unsure)
    seen = []
    async for frame in watcher.frames():
        seen.append(frame)
        if b"event: overview" in frame:
            break
    await hub.aclose()

    assert seen[-1] == b'event: overview\ndata: {"lanes":[]}\n\n'
    assert all(frame.startswith(b"event: unavailable") for frame in seen[:-1])


def block_map(worker: str = "hand", tenant: str = "acme") -> BlockMap:
    return BlockMap(
        worker=worker,
        at_ms=1_700_000_000_000,
        blocks=8,
        block_size=16,
        host_blocks=2,
        tenants=(tenant,),
        lanes=("latency", "throughput"),
        runs=((5, 0, 1, STATES.index("running")), (3, -1, -1, 0)),
        host_runs=((2, -1, -1, 0),),
    )


async def test_the_map_of_blocks_comes_as_it_changes_and_workers_are_asked_for_it(served: Served) -> None:
    served.resources.control.live._every_s = 0.1
    name = "</script><b>" + "x" * 10_000
    registry = RedisRegistry(served.store)
    await registry.show_blocks(block_map(tenant=name))
    async with served.http as client, client.stream("GET", LIVE, headers=OPERATOR) as stream:
        lines = stream.aiter_lines()
        told = [(event, body) for event, body in await events(lines, 3) if event == "kv"]
        await registry.show_blocks(block_map("hand", "zoo"))
        async with asyncio.timeout(20):
            last = await events(lines, 1)
            while last[0][0] != "kv":
                last = await events(lines, 1)

    assert [body["workers"][0]["tenants"] for _, body in told] == [[name]], "once, as it has not changed"
    assert told[0][1]["workers"][0]["runs"] == [[5, 0, 1, 1], [3, -1, -1, 0]]
    assert last[0][1]["workers"][0]["tenants"] == ["zoo"]
    (stream_of,) = [key async for key in served.store.scan_iter("*control:hand")]
    assert await served.store.xlen(stream_of) == 1


async def test_nobody_is_asked_for_a_map_that_nobody_wants(served: Served) -> None:
    served.resources.control.live._every_s = 0.1
    async with served.http as client, client.stream("GET", f"{LIVE}?kv=false", headers=OPERATOR) as stream:
        told = await events(stream.aiter_lines(), 3)

    assert [event for event, _ in told] == ["overview"] * 3
    assert [key async for key in served.store.scan_iter("*control:hand")] == []
