"""Gateways that spend rights, crash, stall and lose replies, on one virtual clock around the store's twin.

What gateways deliver is recorded here, apart from all budgets: `Delivered` is the truth that limits are held to."""

import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TypeVar

from fairlane.quotas.escrow.pool import Flight, Pair, Pool, Rate
from fairlane.quotas.escrow.transfers import Transfer, Transferred
from fairlane.quotas.limits import Limits
from fairlane.quotas.store import AlreadySettled, Ask, Charge, Denied, Need
from tests.support.quotas.house import MemoryHouse, ask

MINUTE_MS = 60_000
TICK_MS = 50
EXCHANGE_MS = 500
BUSY_MS = 3_000
"""After this, nothing that time passes over slowly would show."""
QUANTUM = 8
PAIR = Pair("acme", "web", "k1", "smol", "latency")
T = TypeVar("T")


def run(call: Coroutine[None, None, T]) -> T:
    """Run a call of the in-memory store, which never waits."""
    try:
        call.send(None)
    except StopIteration as stop:
        answer: T = stop.value
        return answer
    raise AssertionError("the store waits")


@dataclass
class Delivered:
    """What clients got, and when: tokens of prompts and outputs, and requests."""

    tokens: list[tuple[int, int]] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(tokens for _, tokens in self.tokens)

    def most_in_a_minute(self) -> int:
        return _most_within(self.tokens)

    def most_requests_in_a_minute(self) -> int:
        return _most_within([(at_ms, 1) for at_ms in self.requests])


def _most_within(events: list[tuple[int, int]]) -> int:
    most = total = first = 0
    for at_ms, amount in events:
        total += amount
        while events[first][0] <= at_ms - MINUTE_MS:
            total -= events[first][1]
            first += 1
        most = max(most, total)
    return most


@dataclass(eq=False)
class Stream:
    """One request of a gateway, as its client sees it."""

    ask: Ask
    granted: int
    most: int
    length: int
    began_ms: int
    published: int = 0

    @property
    def charge(self) -> Charge:
        if not self.published:
            return Charge.refund()
        return Charge(prompt_tokens=self.ask.prompt_tokens, output_tokens=self.published, outcome="finished")


class World:
    """One tenant with a parent and a key, the gateways that serve it, and the reaper of the dead ones."""

    def __init__(self, seed: int, limits: Limits, gateways: int, *, of_parent: Limits, of_key: Limits) -> None:
        self.draw = random.Random(seed)
        self.house = MemoryHouse()
        self.delivered = Delivered()
        # By reservation: also those of dead gateways, as their workers' records have them.
        self.streams: dict[str, Stream] = {}
        self.pooled = self.crashes = self._made = 0
        run(self.house.tenant(of_parent))
        run(self.house.tenant(limits, tenant="web", root="acme", parents=("acme",)))
        run(self.house.key("k1", of_key, tenant="web", root="acme"))
        self.gateways = [Gateway(self) for _ in range(gateways)]

    @property
    def now_ms(self) -> int:
        return self.house.now_ms

    def name(self) -> str:
        self._made += 1
        return f"{self._made:024x}"

    def tick(self, *, rate: float, trouble: float = 0.0, ms: int = TICK_MS) -> None:
        """Let some time pass, in which each gateway makes a request at this probability."""
        self.house.now_ms += ms
        for number, gateway in enumerate(self.gateways):
            if self.draw.random() < trouble * 0.02:
                self.crashes += 1
                self.gateways[number] = Gateway(self)
            elif self.draw.random() < trouble * 0.01:
                gateway.stalls_until_ms = self.now_ms + self.draw.choice([700, 5_000, 45_000])
            elif self.now_ms >= gateway.stalls_until_ms:
                gateway.act(rate, trouble)
        if self.now_ms % 1_000 == 0:
            self.reap()

    def reap(self) -> None:
        for lapsed in run(self.house.store.expired(500)):
            stream = self.streams.get(lapsed.reservation_id)
            charge = Charge.refund() if stream is None else stream.charge
            run(self.house.store.settle("acme", lapsed.reservation_id, charge))
            self.over(lapsed.reservation_id)

    def over(self, name: str) -> None:
        """A request that delivered nothing does not count as one."""
        stream = self.streams.pop(name, None)
        if stream is not None and not stream.published:
            self.delivered.requests.remove(stream.began_ms)

    def pass_quietly(self, ms: int) -> None:
        """Let time pass without requests: streams end, leases lapse, rights return."""
        for _ in range(min(ms, BUSY_MS) // TICK_MS):
            self.tick(rate=0.0)
        for _ in range(max(0, ms - BUSY_MS) // 1_000):
            self.tick(rate=0.0, ms=1_000)


class Gateway:
    """A gateway's pool, and its calls to the store."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stalls_until_ms = 0
        self._rate = Rate()
        self._pool: Pool | None = None
        self._streams: dict[str, Stream] = {}
        self._exchanges_at_ms = 0
        self._renews_at_ms = world.now_ms + 10_000

    @property
    def _now_s(self) -> float:
        return self.world.now_ms / 1e3

    def act(self, rate: float, trouble: float) -> None:
        """Do what is due at this tick."""
        draw = self.world.draw
        if self._pool is not None and self.world.now_ms >= self._exchanges_at_ms:
            self._exchange(trouble)
        if self.world.now_ms >= self._renews_at_ms:
            self._renew()
        for stream in list(self._streams.values()):
            self._serve(stream)
        if draw.random() < rate:
            self._request()

    def _request(self) -> None:
        world = self.world
        name = self._pool.next_name(self._now_s) if self._pool is not None else None
        asked = ask(
            name or world.name(),
            root=PAIR.root,
            tenant=PAIR.account,
            key_id=PAIR.key_id,
            model=PAIR.model,
            lane=PAIR.lane,
            prompts=(world.draw.randint(1, 5),),
            max_output_tokens=world.draw.choice([1, 4, 30]),
            explicit_max=False,
            quantum=QUANTUM,
        )
        reservation = None if self._pool is None else self._pool.reserve(asked, self._now_s)
        if reservation is not None:
            world.pooled += 1
        else:
            try:
                reservation = run(world.house.store.reserve(asked))
            except Denied:
                if self._pool is None or not self._exchange(0.0, closes=True):
                    return
                try:
                    reservation = run(world.house.store.reserve(asked))
                except Denied:
                    return
            self._rate.add(self._now_s, 1, asked.prompt_tokens, reservation.granted_tokens)
            if self._pool is None and self._rate.is_hot(self._now_s):
                self._pool, self._exchanges_at_ms = Pool(PAIR, self._rate), world.now_ms
        length = world.draw.randint(0, reservation.most_tokens)
        stream = Stream(asked, reservation.granted_tokens, reservation.most_tokens, length, world.now_ms)
        world.streams[asked.reservation_id] = self._streams[asked.reservation_id] = stream
        world.delivered.requests.append(world.now_ms)

    def _serve(self, stream: Stream) -> None:
        """Deliver some tokens, ask for more, end."""
        world, name = self.world, stream.ask.reservation_id
        some = min(world.draw.randint(0, 4), stream.granted - stream.published, stream.length - stream.published)
        if some:
            prompt = 0 if stream.published else stream.ask.prompt_tokens
            stream.published += some
            world.delivered.tokens.append((world.now_ms, prompt + some))
        if stream.published >= stream.length:
            self._settle(name, stream)
        elif stream.granted < stream.most and stream.granted - stream.published <= QUANTUM // 2:
            self._extend(name, stream)

    def _extend(self, name: str, stream: Stream) -> None:
        prompt = stream.ask.prompt_tokens if stream.published else 0
        need = Need(
            published=stream.published, prompt_tokens=prompt, known=stream.granted, most=stream.most, quantum=QUANTUM
        )
        pool = self._pool
        extension = pool.extend(name, need, self._now_s) if pool is not None and pool.knows(name) else None
        if extension is None:
            if pool is not None and pool.is_due(name):
                return  # the next exchange records it
            try:
                extension = run(self.world.house.store.extend("acme", name, need))
            except AlreadySettled:
                self._streams.pop(name, None)
                return
            if pool is not None:
                pool.extended(name, need, extension)
        stream.granted = max(stream.granted, extension.granted_tokens)
        if extension.spent:
            stream.length = min(stream.length, stream.granted)

    def _settle(self, name: str, stream: Stream) -> None:
        self._streams.pop(name, None)
        if self._pool is not None and self._pool.knows(name):
            self._pool.settle(name, stream.charge)
        else:
            run(self.world.house.store.settle("acme", name, stream.charge))
        if not stream.published:
            self.world.over(name)

    def _exchange(self, trouble: float, *, closes: bool = False) -> bool:
        pool, draw = self._pool, self.world.draw
        if pool is None:
            return False
        self._exchanges_at_ms = self.world.now_ms + EXCHANGE_MS
        order = pool.order(self._now_s, len(self.world.gateways), closes=closes)
        if draw.random() < trouble * 0.1:
            self._exchanges_at_ms = self.world.now_ms + TICK_MS
            return False  # the call was lost
        answer = self._transfer(order)
        if draw.random() < trouble * 0.1:
            self._exchanges_at_ms = self.world.now_ms + TICK_MS
            return False  # its reply was
        pool.answered(answer)
        if pool.is_over:
            self._pool = None
            for flight in pool.left():
                self._report(flight)
        return True

    def _transfer(self, order: Transfer) -> Transferred:
        return run(self.world.house.twin.transfer(order))

    def _report(self, flight: Flight) -> None:
        """Report what a lost pool did not."""
        twin, name = self.world.house.twin, flight.ask.reservation_id
        if (flight.charge is None or not flight.charge.is_refund) and not run(twin.book(flight.ask)):
            self._streams.pop(name, None)
        if flight.charge is not None:
            run(twin.settle("acme", name, flight.charge))

    def _renew(self) -> None:
        self._renews_at_ms = self.world.now_ms + 10_000
        pool = self._pool
        known = [name for name in self._streams if pool is None or not pool.knows(name) or pool.is_recorded(name)]
        for name in run(self.world.house.store.renew("acme", known)):
            self._streams.pop(name, None)
