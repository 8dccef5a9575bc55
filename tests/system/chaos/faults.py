"""The faults of a run. Each acts on the fleet for a bounded time, and leaves it healed."""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import redis.exceptions

from tests.system.chaos.fleet import LEASE_S, Fleet, Member
from tests.system.chaos.network import Proxy, Way

# Longer than the lease of a worker, shorter than that of a gateway.
LONG_S = 2.0 * LEASE_S
LOST_S = 1.0
FULL_BYTES = 1


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault in the log of a run."""

    what: str
    began_s: float
    # The processes that lost state or contact.
    hurt: tuple[str, ...] = ()
    # The store lost acknowledged writes.
    loses_writes: bool = False


@dataclass
class Faults:
    """Draws faults and applies them."""

    fleet: Fleet
    chooser: random.Random
    strikes: list[Strike] = field(default_factory=list)
    # Indexes of gateways and workers that are not killed, so that their memory can be followed.
    spared: frozenset[int] = frozenset()
    counts: Counter[str] = field(default_factory=Counter)
    _busy: set[str] = field(default_factory=set)

    @property
    def kinds(self) -> dict[str, tuple[int, Callable[[], Awaitable[None]]]]:
        """Return each kind of fault with its weight."""
        return {
            "kill worker": (4, self.kill_worker),
            "kill gateway": (3, self.kill_gateway),
            "kill gateway and worker": (2, self.kill_both),
            "stop worker": (3, self.stop_worker),
            "stop gateway": (2, self.stop_gateway),
            "terminate worker": (1, self.terminate_worker),
            "cut link": (4, self.cut_link),
            "cut link one way": (4, self.cut_link_one_way),
            "break connections of link": (2, self.break_link),
            "reset link": (2, self.reset_link),
            "refuse link": (1, self.refuse_link),
            "split frame": (3, self.split_frame),
            "delay link": (2, self.delay_link),
            "isolate gateway from all workers": (1, self.isolate_gateway),
            "cut store": (3, self.cut_store),
            "cut store one way": (2, self.cut_store_one_way),
            "reset store connections": (1, self.reset_store),
            "delay store": (1, self.delay_store),
            "stop store": (2, self.stop_store),
            "kill store": (2, self.kill_store),
            "fill store": (2, self.fill_store),
            "fail over": (2, self.fail_over),
            "fail over and lose writes": (2, self.fail_over_lossy),
        }

    async def strike(self) -> None:
        """Apply one fault drawn at random, until it is healed."""
        kinds = self.kinds
        [name] = self.chooser.choices([*kinds], [weight for weight, _ in kinds.values()])
        await self.apply(name)

    async def apply(self, name: str) -> None:
        self.counts[name] += 1
        await self.kinds[name][1]()

    # Processes.

    async def kill_worker(self) -> None:
        await self._kill([self._victim(self.fleet.workers)])

    async def kill_gateway(self) -> None:
        await self._kill([self._victim(self.fleet.gateways)])

    async def kill_both(self) -> None:
        await self._kill([self._victim(self.fleet.gateways), self._victim(self.fleet.workers)])

    async def stop_worker(self) -> None:
        await self._stop(self.fleet.workers)

    async def stop_gateway(self) -> None:
        await self._stop(self.fleet.gateways)

    async def terminate_worker(self) -> None:
        member = self._victim(self.fleet.workers)
        async with _Claim(self._busy, member.name) as is_free:
            if not is_free or member.running is None:
                return
            self._note(f"terminate {member.name}", member.name)
            member.send(signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(20.0):
                    while member.running.poll() is None:  # noqa: ASYNC110 - a process
                        await asyncio.sleep(0.05)
            member.kill()
            member.start()

    async def _kill(self, members: Sequence[Member]) -> None:
        names = tuple(member.name for member in members)
        async with _Claim(self._busy, *names) as is_free:
            if not is_free:
                return
            self._note(f"kill {' and '.join(names)}", *names)
            for member in members:
                member.kill()
            await asyncio.sleep(self.chooser.choice((0.0, 0.5, LEASE_S)))
            for member in members:
                member.start()

    async def _stop(self, members: Sequence[Member]) -> None:
        member = self.chooser.choice(members)
        async with _Claim(self._busy, member.name) as is_free:
            if not is_free:
                return
            seconds = self.chooser.choice((0.5, 1.2 * LEASE_S, 3.0 * LEASE_S))
            self._note(f"stop {member.name} for {seconds:.1f} s", member.name)
            member.send(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            member.send(signal.SIGCONT)

    def _victim(self, members: Sequence[Member]) -> Member:
        return self.chooser.choice([each for number, each in enumerate(members) if number not in self.spared])

    # Links.

    async def cut_link(self) -> None:
        await self._on_link("cut", lambda proxy: proxy.hold(), self.chooser.uniform(0.3, LONG_S))

    async def cut_link_one_way(self) -> None:
        way = self.chooser.choice([*Way])
        await self._on_link(f"cut {way.name} of", lambda proxy: proxy.hold(way), self.chooser.uniform(0.3, LONG_S))

    async def break_link(self) -> None:
        await self._on_link("break the connections of", Proxy.hold_existing, 0.0)

    async def reset_link(self) -> None:
        await self._on_link("reset", Proxy.reset, 0.0)

    async def refuse_link(self) -> None:
        await self._on_link("refuse", Proxy.refuse, self.chooser.uniform(0.3, LONG_S))

    async def split_frame(self) -> None:
        way = self.chooser.choice([*Way])
        await self._on_link(f"split a frame {way.name} of", lambda proxy: proxy.split(way), LONG_S)

    async def delay_link(self) -> None:
        await self._on_link("delay", lambda proxy: proxy.delay(0.2), LONG_S)

    async def isolate_gateway(self) -> None:
        gateway = self.chooser.randrange(len(self.fleet.gateways))
        proxies = [proxy for (_, other), proxy in self.fleet.links.items() if other == gateway]
        seconds = self.chooser.uniform(LEASE_S, LONG_S)
        name = f"gateway{gateway}"
        await self._on_proxies(f"isolate {name} from all workers", proxies, lambda proxy: proxy.hold(), seconds, name)

    async def _on_link(self, what: str, act: Callable[[Proxy], None], seconds: float) -> None:
        worker, gateway = self.chooser.choice([*self.fleet.links])
        names = f"worker{worker}", f"gateway{gateway}"
        proxy = self.fleet.links[worker, gateway]
        await self._on_proxies(f"{what} link of {names[0]} and {names[1]}", [proxy], act, seconds, names[0])

    # The store.

    async def cut_store(self) -> None:
        await self._on_store_path("cut", lambda proxy: proxy.hold(), self.chooser.uniform(0.3, 1.5 * LEASE_S))

    async def cut_store_one_way(self) -> None:
        way = self.chooser.choice([*Way])
        what = f"cut {way.name} of"
        await self._on_store_path(what, lambda proxy: proxy.hold(way), self.chooser.uniform(0.3, 1.5 * LEASE_S))

    async def reset_store(self) -> None:
        await self._on_store_path("reset", Proxy.reset, 0.0)

    async def delay_store(self) -> None:
        await self._on_store_path("delay", lambda proxy: proxy.delay(0.1), LONG_S)

    async def _on_store_path(self, what: str, act: Callable[[Proxy], None], seconds: float) -> None:
        name = self.chooser.choice([*self.fleet.to_store])
        await self._on_proxies(f"{what} store path of {name}", [self.fleet.to_store[name]], act, seconds, name)

    async def _on_proxies(
        self, what: str, proxies: Sequence[Proxy], act: Callable[[Proxy], None], seconds: float, *hurt: str
    ) -> None:
        ports = [f"port {proxy.port}" for proxy in proxies]
        async with _Claim(self._busy, *ports) as is_free:
            if not is_free:
                return
            self._note(f"{what} for {seconds:.1f} s", *hurt)
            for proxy in proxies:
                act(proxy)
            if seconds:
                await asyncio.sleep(seconds)
                for proxy in proxies:
                    proxy.heal()

    async def stop_store(self) -> None:
        async with _Claim(self._busy, "store") as is_free:
            if is_free:
                seconds, server = self.chooser.uniform(0.3, LEASE_S), self.fleet.store.servers[self.fleet.store.master]
                self._note(f"stop store for {seconds:.1f} s")
                server.send(signal.SIGSTOP)
                await asyncio.sleep(seconds)
                server.send(signal.SIGCONT)

    async def kill_store(self) -> None:
        async with _Claim(self._busy, "store") as is_free:
            if is_free:
                store = self.fleet.store
                await store.ask(store.master, "CONFIG", "SET", "appendfsync", "always")  # a kill loses nothing then
                self._note("kill store")
                store.servers[store.master].kill()
                await asyncio.sleep(self.chooser.uniform(0.0, 1.0))
                store.start_server(store.master)
                await store.answers()

    async def fill_store(self) -> None:
        async with _Claim(self._busy, "store") as is_free:
            if is_free:
                store, seconds = self.fleet.store, self.chooser.uniform(0.5, LEASE_S)
                self._note(f"fill store for {seconds:.1f} s")
                await store.ask(store.master, "CONFIG", "SET", "maxmemory", FULL_BYTES)
                await asyncio.sleep(seconds)
                await store.ask(store.master, "CONFIG", "SET", "maxmemory", 0)

    async def fail_over(self) -> None:
        async with _Claim(self._busy, "store") as is_free:
            if is_free and await self.fleet.store.replicated(2.0):
                store = self.fleet.store
                with suppress(redis.exceptions.RedisError):
                    await store.ask(store.master, "CLIENT", "PAUSE", 5_000, "WRITE")
                    await self._caught_up()
                self._note("fail over")
                await store.promote()
                self.fleet.retarget()

    async def fail_over_lossy(self) -> None:
        async with _Claim(self._busy, "store") as is_free:
            if is_free and await self.fleet.store.replicated(2.0):
                store = self.fleet.store
                self._note(f"fail over and lose {LOST_S:.0f} s of writes", loses_writes=True)
                store.replication.hold()
                await asyncio.sleep(LOST_S)
                await store.promote()
                self.fleet.retarget()

    async def _caught_up(self) -> None:
        store = self.fleet.store
        wanted = (await store.ask(store.master, "INFO", "replication"))["master_repl_offset"]
        async with asyncio.timeout(3.0):
            while (await store.ask(1 - store.master, "INFO", "replication"))["slave_repl_offset"] < wanted:  # noqa: ASYNC110 - another process changes it
                await asyncio.sleep(0.01)

    async def heal(self) -> None:
        """End what a cancelled fault has left."""
        for proxy in self.fleet.proxies:
            proxy.heal()

    def _note(self, what: str, *hurt: str, loses_writes: bool = False) -> None:
        self.strikes.append(Strike(what, time.monotonic(), hurt, loses_writes))


class _Claim:
    """Excludes two faults of the same victims at the same time."""

    def __init__(self, busy: set[str], *names: str) -> None:
        self._busy, self._names, self._is_free = busy, names, False

    async def __aenter__(self) -> bool:
        self._is_free = not self._busy.intersection(self._names)
        if self._is_free:
            self._busy.update(self._names)
        return self._is_free

    async def __aexit__(self, *error: object) -> None:
        if self._is_free:
            self._busy.difference_update(self._names)
