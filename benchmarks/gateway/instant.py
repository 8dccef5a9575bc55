"""An engine that answers at once, behind the real queue: what is left of a request's time and cost is the gateway's.

python -m benchmarks.gateway.instant REDIS_URL

It takes what waits as soon as it waits, and each step brings every sequence its next tokens in one write to each
gateway, as a worker's does. A request's `seed` says how many tokens each step brings it: 1 is a stream as engines make
it, more than it asks for is a whole answer at once.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import uvloop
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from fairlane.scheduler.links.dialer import Dialer, GatewayPeer
from fairlane.scheduler.links.frames import Open, ToWorker
from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import (
    Cancel,
    Finished,
    FinishReason,
    Lease,
    ModelCard,
    Outcome,
    Paused,
    TokenDelta,
    WorkerStatus,
)
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import RedisRegistry, queue_name
from fairlane.scheduler.queue.types import Progress
from fairlane.store.bounds import PER_CALL
from fairlane.store.connections import connections
from fairlane.store.retry import StoreLink
from fairlane.worker.media.starts import JobOwner
from fairlane.worker.outlet import Outlet
from fairlane.worker.reports import Publication
from fairlane.worker.runtime import dial
from fairlane.worker.shards.store_reports import Report, StoreCalls

MODEL = "instant"
WORKER_ID = "instant"
LEASE_MS = 6_000
SEQUENCES = 512
CONTEXT_TOKENS = 8_192
BLOCKS = 65_536
STEP_WEIGHTS = (0.05, 0.0005, 0.0001, 0.0, 0.0)
"""What it says that its steps cost, so that admission weighs every request as it would before a real engine."""
IDLE_MS = 1_000
STORE_TIMEOUT_S = 5.0
ECHO = 0
"""A stream that no job has: an outlet numbers its own from 1."""
SPECIAL = ("<|im_start|>", "<|im_end|>")
WORDS = tuple(f" word{number}" for number in range(64))
TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
)


def card() -> ModelCard:
    """A byte-level model that reads letter by letter and answers in words."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens([AddedToken(word, special=False) for word in WORDS])
    return ModelCard(
        model=MODEL,
        tokenizer_json=tokenizer.to_str(),
        chat_template=TEMPLATE,
        context_length=CONTEXT_TOKENS,
        vocab_size=tokenizer.get_vocab_size(),
        eos_token_ids=(tokenizer.get_vocab()[SPECIAL[1]],),
        eos_token=SPECIAL[1],
    )


@dataclass(slots=True)
class Row:
    """One sequence, of one choice."""

    lease: Lease
    granted: int
    pace: int = 1
    """Tokens that a step brings it."""
    made: int = 0

    @property
    def left(self) -> int:
        return self.lease.job.max_tokens - self.made

    @property
    def can_step(self) -> bool:
        """The budget lets it make another token."""
        return self.made < min(self.granted, self.lease.job.max_tokens)

    def step(self, text: Sequence[int]) -> Publication:
        """Its next tokens of a text, and its end with the last."""
        lease, first = self.lease, self.made
        job_id, epoch = lease.job.job_id, lease.epoch
        ids = tuple(text[first : first + min(self.pace, self.granted - first, self.left)])
        self.made += len(ids)
        reason: FinishReason | None = None if self.left else "length"
        delta = TokenDelta(job_id=job_id, epoch=epoch, choice=0, first_index=first, token_ids=ids, finish_reason=reason)
        if self.can_step:
            return Publication(lease, (delta,), float(len(ids)))
        if self.left:
            return Publication(lease, (delta, Paused(job_id=job_id, choice=0)), float(len(ids)))
        return Publication(lease, (delta, _finished(lease, Outcome.FINISHED)), float(len(ids)), Outcome.FINISHED)


@dataclass
class Engine:
    """The queue's jobs and their rows; single choices only."""

    queue: RedisQueue
    news: RedisQueue
    """The same, for the one task that waits there."""
    registry: RedisRegistry
    text: tuple[int, ...]
    """What it answers, as long as an answer may be."""
    rows: dict[str, Row] = field(default_factory=dict)
    """By job."""
    filled: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.lines: list[Line] = []
        self.last_id = "0-0"
        self.called: list[str] = []
        self.outlet = outlet(self, self.report, self.queue, self.registry, self.lines)

    async def take_in(self) -> None:
        """Take jobs and hear of cancellations, until cancelled."""
        self.outlet.ask()
        while True:
            news = await self.news.read_news(WORKER_ID, self.last_id, IDLE_MS)
            self.last_id = news.last_id
            self.outlet.took(news.leases)
            for control in news.controls:
                if isinstance(control, Cancel) and self.outlet.cancel(control.job_id):
                    self.cancel_job(control.job_id)
            if news.calls:
                self.called += news.calls
                self.outlet.ask()

    async def report(self, items: Sequence[Progress], serial: str) -> set[str]:
        """Report, and offer the room that is free by then."""
        called, self.called = self.called[-PER_CALL:], []
        free = room(SEQUENCES - len(self.rows))
        turn = await self.queue.turn(WORKER_ID, free, items, called=called, last_id=self.last_id, serial=serial)
        self.outlet.took(turn.leases)
        return turn.refused

    async def step(self) -> None:
        """Step the rows that may make a token, again and again, until cancelled."""
        while True:
            await self.filled.wait()
            rows = [row for row in self.rows.values() if row.can_step]
            if not rows:
                self.filled.clear()
                continue
            step = [row.step(self.text) for row in rows]
            for publication in step:
                if publication.ends is not None:
                    del self.rows[publication.job_id]
            self.outlet.put(step)
            await self.stepped(rows)

    async def stepped(self, rows: Sequence[Row]) -> None:
        """Wait until the gateways have handled a step of these rows, so that no stream gets two steps at once."""
        if any(row.left for row in rows):
            for line in self.lines:
                await line.handled()

    def start_job(self, lease: Lease, *, again: bool) -> None:
        """Begin a row after the tokens that the gateway has."""
        job, made = lease.job, sum(map(len, lease.generated))
        self.rows[job.job_id] = Row(lease, job.granted_until, max(1, job.sampling.seed), made)
        self.filled.set()

    def grant_job(self, job_id: str, granted_until: int) -> None:
        """Let a row make more tokens."""
        row = self.rows.get(job_id)
        if row is not None:
            row.granted = granted_until
            self.filled.set()

    def cancel_job(self, job_id: str) -> None:
        """End a row."""
        row = self.rows.pop(job_id, None)
        if row is not None:
            end = _finished(row.lease, Outcome.CANCELLED)
            self.outlet.put([Publication(row.lease, (end,), ends=Outcome.CANCELLED)])

    def drop_jobs(self, jobs: Sequence[tuple[str, int]], why: str) -> None:
        """Forget rows."""
        for job_id, _ in jobs:
            self.rows.pop(job_id, None)

    def forget_job(self, job_id: str, epoch: int) -> None:
        """Nothing is kept of it."""


def _finished(lease: Lease, outcome: Outcome) -> Finished:
    return Finished(job_id=lease.job.job_id, epoch=lease.epoch, outcome=outcome, worker_id=WORKER_ID)


class Line:
    """The link to one gateway, which can also wait until the gateway has handled all that was sent."""

    def __init__(self, queue: str, registry: RedisRegistry, gateway_id: str, address: str, peer: GatewayPeer) -> None:
        self._peer = peer
        self._echoed = asyncio.Event()
        self._is_lost = False
        self.link = dial(WORKER_ID, queue, registry, gateway_id, address, self)

    async def handled(self) -> None:
        """Wait until the gateway refuses a job that it does not know; before that, until the link is open."""
        if not self._is_lost:
            self._echoed.clear()
            self._ask()
            await self._echoed.wait()

    @property
    def has_jobs(self) -> bool:
        return self._peer.has_jobs

    def linked(self) -> None:
        self._is_lost = False
        self._peer.linked()
        self._ask()  # the link drops what was sent before

    def unlinked(self) -> None:
        self._is_lost = True
        self._echoed.set()
        self._peer.unlinked()

    def received(self, messages: Sequence[ToWorker]) -> None:
        own = [message for message in messages if message.stream != ECHO]
        if len(own) < len(messages):
            self._echoed.set()
        self._peer.received(own)

    def _ask(self) -> None:
        self.link.send([Open(ECHO, "", 0)])


def outlet(owner: JobOwner, report: Report, queue: RedisQueue, registry: RedisRegistry, lines: list[Line]) -> Outlet:
    """What sends this worker's tokens to the gateways, each a new one of `lines`, and its progress to the store."""

    def new_link(gateway_id: str, address: str, peer: GatewayPeer) -> Dialer:
        lines.append(Line(queue.name, registry, gateway_id, address, peer))
        return lines[-1].link

    return Outlet(
        owner,
        dial=new_link,
        stores=[StoreCalls(report, partial(queue.release, WORKER_ID), queue.new_serial)],
        link=StoreLink(LEASE_MS / 1e3),
        patience_s=LEASE_MS / 2e3,
    )


def worker_status(queue: str, sha256: str) -> WorkerStatus:
    """The status of a worker that serves this queue with all its room free."""
    return WorkerStatus(
        worker_id=WORKER_ID,
        model=MODEL,
        queue=queue,
        card_sha256=sha256,
        started_at_ms=0.0,
        blocks_total=BLOCKS,
        blocks_free=BLOCKS,
        max_sequences=SEQUENCES,
        step_weights=STEP_WEIGHTS,
        step_ms=1.0,
    )


def room(free: int) -> Capacity:
    """What a worker offers with so many free sequences: any of them to any lane."""
    return Capacity(sequences=dict.fromkeys(LaneName, free), kv_tokens=dict.fromkeys(LaneName, BLOCKS * 16))


async def beat(queue: RedisQueue, registry: RedisRegistry, sha256: str) -> None:
    """Send heartbeats until cancelled."""
    status = worker_status(queue.name, sha256)
    while True:
        await registry.beat(status, LEASE_MS)
        await queue.renew(WORKER_ID)
        await asyncio.sleep(LEASE_MS / 4e3)


async def serve(url: str) -> None:
    """Serve until cancelled."""
    known = card()
    store = connections(url, timeout_s=STORE_TIMEOUT_S, limit=4)  # thrifty: a gateway waits for what this core does
    registry = RedisRegistry(store.patient)
    sha256 = await registry.announce(known)
    queue, news = (
        RedisQueue(client, queue_name(MODEL, sha256), dict(DEFAULT_LANES), lease_ms=LEASE_MS)
        for client in (store.patient, store.reader())
    )
    ids = Tokenizer.from_str(known.tokenizer_json).get_vocab()
    engine = Engine(queue, news, registry, tuple(ids[word] for word in WORDS) * (CONTEXT_TOKENS // len(WORDS)))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(beat(queue, registry, sha256))
        tasks.create_task(engine.take_in())
        tasks.create_task(engine.step())
        tasks.create_task(engine.outlet.run())


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
