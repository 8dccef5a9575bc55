"""What a request costs in the gateway, from the accepted connection to the settled request and the closed connection.

The gateway serves on this thread's event loop; its client and its worker run on another thread and go in step with it:
the worker sends a token when the client has read the one before. Timers that stand when a request begins are held
until it has ended, so that no periodic work of the gateway falls into its count. Of several equal requests the
cheapest counts: a blocking read of the store that ends meanwhile adds to the others.
"""

import asyncio
import contextlib
import heapq
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import cast

import redis
import redis.asyncio
from tokenizers import Tokenizer

from benchmarks.common.store import own_store
from benchmarks.costs.counting import CallCounter, CommandCounter, ObjectCounter, SentCounter
from benchmarks.gateway.instant import LEASE_MS, MODEL, WORDS, WORKER_ID, Engine, card, worker_status
from benchmarks.gateway.stand import TENANT, tenant_key
from fairlane.gateway.config import GatewaySection, GatewaySettings
from fairlane.gateway.runtime.resources import Resources
from fairlane.gateway.server import Server, configure
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Lease
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import RedisRegistry, queue_name

WARM_UP, REPEATS = 3, 6
STREAMED_TOKENS = 64
PLAIN_TOKENS = 16
CHAT_PROMPT_TOKENS, CHAT_TOKENS = 500, 256
TEMPLATE_TOKENS = len("<user\n>\n<assistant\n")
HELD_S = 1e6
WAIT_S = 20.0
PROMPT = "Tell me in a few words what the capital of France is known for."
CHAT_PROMPT = ("go on " * CHAT_PROMPT_TOKENS)[: CHAT_PROMPT_TOKENS - TEMPLATE_TOKENS]


class StillLoop(asyncio.SelectorEventLoop):
    """An event loop whose standing timers can be held; new ones run as ever."""

    def hold_timers(self) -> list[asyncio.TimerHandle]:
        """Put every timer that stands far off; returns them."""
        held = list(self._timers)
        for timer in held:
            timer._when += HELD_S  # type: ignore[attr-defined] # asyncio offers no way to move a timer
        heapq.heapify(self._timers)
        return held

    def release_timers(self, held: list[asyncio.TimerHandle]) -> None:
        """Put them back to when they were due."""
        for timer in held:
            timer._when -= HELD_S  # type: ignore[attr-defined]
        heapq.heapify(self._timers)

    @property
    def _timers(self) -> list[asyncio.TimerHandle]:
        return self._scheduled  # type: ignore[attr-defined, no-any-return]


class _ThreadServer(Server):
    """A server without signal handlers, which its driver ends."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing to capture."""
        yield


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one request."""

    calls: int
    # All that the store executed, and what clients sent of it.
    commands: int
    sent: int = 0
    # Held while it waits for its first token.
    objects: int = 0


class Driver:
    """The client and the worker of every request."""

    def __init__(self, store_url: str, resources: Resources, server: Server, loop: StillLoop) -> None:
        self._store_url, self._resources, self._server, self._loop = store_url, resources, server, loop
        self._counter = CallCounter()
        self._held: list[asyncio.TimerHandle] = []

    async def run(self) -> dict[str, Cost]:
        """The cheapest of each kind of request."""
        with redis.Redis.from_url(self._store_url) as counted, counted.monitor() as monitor:
            self._commands, self._sent = CommandCounter(counted), SentCounter(counted, monitor)
            async with redis.asyncio.Redis.from_url(self._store_url) as client:
                await self._connect(client)
                reporting = asyncio.create_task(self._engine.outlet.run())
                try:
                    return await self._costs()
                finally:
                    reporting.cancel()
                    await self._engine.outlet.aclose()

    async def _costs(self) -> dict[str, Cost]:
        objects = await self._objects()
        for _ in range(4 * REPEATS):
            objects &= await self._objects()  # the fewest of each kind: upkeep makes others now and then
        return {
            "plain": await self._cheapest(PLAIN_TOKENS, streams=False),
            "stream": await self._cheapest(STREAMED_TOKENS, streams=True),
            "chat": await self._cheapest(CHAT_TOKENS, streams=True, prompt=CHAT_PROMPT),
            "first": replace(await self._cheapest(1, streams=True), objects=objects.total()),
        }

    async def _connect(self, client: redis.asyncio.Redis) -> None:
        """Register as a worker, and wait until the gateway has seen it."""
        self._key = await tenant_key(client, TENANT)
        self._registry = RedisRegistry(client)
        sha256 = await self._registry.announce(card())
        self._queue = RedisQueue(client, queue_name(MODEL, sha256), dict(DEFAULT_LANES), lease_ms=LEASE_MS)
        self._status = worker_status(self._queue.name, sha256)
        ids = Tokenizer.from_str(card().tokenizer_json).get_vocab()
        self._engine = Engine(self._queue, self._queue, self._registry, tuple(ids[word] for word in WORDS) * 4)
        async with asyncio.timeout(WAIT_S):
            while not (self._server.started and self._resources.fleet.cache.workers):
                await self._beat()
                await asyncio.sleep(0.05)

    async def _beat(self) -> None:
        await self._registry.beat(self._status, LEASE_MS)
        await self._queue.renew(WORKER_ID)

    async def _cheapest(self, tokens: int, *, streams: bool, prompt: str = PROMPT) -> Cost:
        costs = [await self._request(tokens, streams=streams, prompt=prompt) for _ in range(WARM_UP + REPEATS)]
        return Cost(
            *(min(each) for each in zip(*((cost.calls, cost.commands, cost.sent) for cost in costs), strict=True))
        )

    async def _objects(self) -> Counter[str]:
        """Return the objects of the gateway's own classes that a stream adds until its first token is awaited."""
        await self._beat()
        await self._listen()
        before, during = ObjectCounter(), ObjectCounter()

        async def waiting() -> None:
            jobs = self._resources.fleet.dispatcher.jobs
            async with asyncio.timeout(WAIT_S):
                while not (jobs and all(job.stream for job in [*jobs.values()])):  # noqa: ASYNC110 - another thread's
                    await asyncio.sleep(0.002)
            await self._on_loop(during.count)

        await self._on_loop(before.count)
        await self._exchange(1, streams=True, waiting=waiting)
        await self._settled()
        return during.kinds - before.kinds

    async def _request(self, tokens: int, *, streams: bool, prompt: str) -> Cost:
        await self._beat()
        await self._listen()
        await self._on_loop(self._begin)
        try:
            self._sent.count()
            self._commands.reset()
            await self._exchange(tokens, streams=streams, prompt=prompt)
            await self._settled()
            commands, sent = self._commands.total(), self._sent.count()
        finally:
            await self._on_loop(self._end)
        return Cost(self._counter.calls, commands, sent)

    async def _exchange(
        self,
        tokens: int,
        *,
        streams: bool,
        prompt: str = PROMPT,
        waiting: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Send the request, compute its tokens, and read its answer to the end.

        `waiting` is called before the first token."""
        reader, writer = await asyncio.open_connection(*self._server.servers[0].sockets[0].getsockname()[:2])
        writer.write(self._request_bytes(tokens, prompt, streams=streams))
        job_id = await self._take()
        row = self._engine.rows[job_id]
        row.pace = 1 if streams else tokens
        if waiting is not None:
            await waiting()
        read = b""
        while row.left:
            while not row.can_step:
                self._engine.filled.clear()
                await asyncio.wait_for(self._engine.filled.wait(), WAIT_S)
            self._engine.outlet.put([row.step(self._engine.text)])
            while streams and read.count(b'"content":" word') < row.made:
                read += await asyncio.wait_for(reader.read(65_536), WAIT_S)
        read += await asyncio.wait_for(reader.read(), WAIT_S)
        if not read.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the gateway refused the request: {read[:500]!r}")
        writer.close()
        del self._engine.rows[job_id]
        await self._engine.outlet.emptied()

    async def _take(self) -> str:
        """Wait for the job that the worker is given."""
        leases: list[Lease] = []
        async with asyncio.timeout(WAIT_S):
            while not leases:
                news = await self._queue.read_news(WORKER_ID, self._engine.last_id, 2_000)
                self._engine.last_id, leases = news.last_id, news.leases
        self._engine.outlet.took(leases)
        [lease] = leases
        return lease.job.job_id

    async def _listen(self) -> None:
        """Offer room, and read what came before."""
        self._engine.outlet.ask()
        await self._engine.outlet.flushed()
        self._engine.last_id = (await self._queue.read_news(WORKER_ID, "$", 0)).last_id

    async def _settled(self) -> None:
        """Wait until nothing of a request is left in the gateway."""
        parts = self._resources
        async with asyncio.timeout(WAIT_S):
            while parts.fleet.dispatcher.jobs or parts.requests.settlements.in_hand or parts.ports.limiter.count:  # noqa: ASYNC110 - another thread's
                await asyncio.sleep(0.002)

    async def _on_loop(self, act: Callable[[], None]) -> None:
        """Call this on the gateway's loop."""

        async def call() -> None:
            act()

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), self._loop))

    def _begin(self) -> None:
        self._held = self._loop.hold_timers()
        self._counter.calls = 0
        self._counter.start()

    def _end(self) -> None:
        self._counter.stop()
        self._loop.release_timers(self._held)

    def _request_bytes(self, tokens: int, prompt: str, *, streams: bool) -> bytes:
        body = json.dumps(
            {
                "model": MODEL,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": tokens,
                "stream": streams,
                "temperature": 0,
            }
        )
        return (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            f"authorization: Bearer {self._key}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n{body}"
        ).encode()


async def _serve(store_url: str) -> dict[str, Cost]:
    """Serve on this loop, which is a StillLoop, while a driver on a thread of its own makes its requests."""
    settings = GatewaySettings(
        redis_url=store_url, port=0, admin_key="k" * 40, gateway=GatewaySection(store_timeout_s=8.0)
    )
    resources = Resources(settings)
    server = _ThreadServer(configure(settings, resources), resources)
    loop = cast("StillLoop", asyncio.get_running_loop())
    serving = asyncio.create_task(server.serve())
    try:
        return await asyncio.to_thread(asyncio.run, Driver(store_url, resources, server, loop).run())
    finally:
        server.should_exit = True
        await serving


def measure() -> dict[str, float]:
    """Calls and commands by entry of the book."""
    with own_store() as url, asyncio.Runner(loop_factory=StillLoop) as runner:
        found = runner.run(_serve(url))
    plain, stream, chat, first = found["plain"], found["stream"], found["chat"], found["first"]
    more = STREAMED_TOKENS - 1
    return {
        "plain chat, calls": plain.calls,
        "plain chat, store commands": plain.commands,
        f"stream of {STREAMED_TOKENS} tokens, calls": stream.calls,
        f"stream of {STREAMED_TOKENS} tokens, store commands": stream.commands,
        f"chat of {CHAT_PROMPT_TOKENS} + {CHAT_TOKENS} tokens, sent store commands": chat.sent,
        "one more token delivered, calls": (stream.calls - first.calls) / more,
        "one more token delivered, store commands": (stream.commands - first.commands) / more,
        "waiting for a first token, objects": first.objects,
    }
