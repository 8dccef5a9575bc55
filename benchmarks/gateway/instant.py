"""An engine that answers at once, behind the real queue: what is left of a request's time and cost is the gateway's.

python -m benchmarks.gateway.instant REDIS_URL

It takes what waits as soon as it waits, and each step brings every sequence its next tokens in one publication, as a
worker's does. A request's `seed` says how many tokens each step brings it: 1 is a stream as engines make it, more than
it asks for is a whole answer at once.
"""

import asyncio
import sys
from dataclasses import dataclass, field

import uvloop
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import (
    Cancel,
    Finished,
    FinishReason,
    ModelCard,
    Outcome,
    TokenDelta,
    WorkerStatus,
)
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import RedisRegistry, queue_name
from fairlane.scheduler.queue.types import Publication
from fairlane.store.connections import connections

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
    """One sequence."""

    job_id: str
    epoch: int
    pace: int
    """Tokens that a step brings it."""
    left: int
    made: int = 0

    def step(self, text: tuple[int, ...]) -> Publication:
        """Its next tokens of a text, and its end with the last."""
        job_id, epoch, first = self.job_id, self.epoch, self.made
        count = min(self.pace, self.left)
        ids = text[first : first + count]
        self.made += count
        self.left -= count
        reason: FinishReason | None = None if self.left else "length"
        delta = TokenDelta(job_id=job_id, epoch=epoch, choice=0, first_index=first, token_ids=ids, finish_reason=reason)
        published = ((0, first, ids),)
        if self.left:
            return Publication(job_id, epoch, (delta,), published, float(count))
        end = Finished(job_id=job_id, epoch=epoch, outcome=Outcome.FINISHED, worker_id=WORKER_ID)
        return Publication(job_id, epoch, (delta, end), published, float(count), Outcome.FINISHED)


@dataclass
class Engine:
    """The queue's jobs and their rows; single choices only."""

    queue: RedisQueue
    news: RedisQueue
    """The same, for the one task that waits there."""
    text: tuple[int, ...]
    """What it answers, as long as an answer may be."""
    rows: dict[str, dict[str, Row]] = field(default_factory=dict)
    """By gateway and job."""
    filled: asyncio.Event = field(default_factory=asyncio.Event)

    async def take_in(self) -> None:
        """Take jobs and hear of cancellations, until cancelled."""
        last_id = "0-0"
        while True:
            last_id, controls, _ = await self.news.read_control(WORKER_ID, last_id, IDLE_MS)
            for control in controls:
                if isinstance(control, Cancel):
                    await self._cancel(control.job_id)
            free = SEQUENCES - sum(map(len, self.rows.values()))
            for lease in await self.queue.take(WORKER_ID, room(free)):
                job = lease.job
                row = Row(job.job_id, lease.epoch, max(1, job.sampling.seed), job.max_tokens)
                self.rows.setdefault(job.gateway_id, {})[job.job_id] = row
                self.filled.set()

    async def step(self) -> None:
        """Step all rows, again and again, until cancelled: one call to the store for each gateway's."""
        while True:
            await self.filled.wait()
            for gateway_id, rows in [each for each in self.rows.items() if each[1]]:
                step = [row.step(self.text) for row in rows.values()]
                for publication in step:
                    if publication.ends is not None:
                        del rows[publication.job_id]
                for job_id in await self.queue.publish(gateway_id, WORKER_ID, step):
                    rows.pop(job_id, None)
            if not any(self.rows.values()):
                self.filled.clear()

    async def _cancel(self, job_id: str) -> None:
        for gateway_id, rows in list(self.rows.items()):
            row = rows.pop(job_id, None)
            if row is not None:
                end = Finished(job_id=job_id, epoch=row.epoch, outcome=Outcome.CANCELLED, worker_id=WORKER_ID)
                cancelled = Publication(job_id, row.epoch, (end,), ends=Outcome.CANCELLED)
                await self.queue.publish(gateway_id, WORKER_ID, [cancelled])


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
    engine = Engine(queue, news, tuple(ids[word] for word in WORDS) * (CONTEXT_TOKENS // len(WORDS)))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(beat(queue, registry, sha256))
        tasks.create_task(engine.take_in())
        tasks.create_task(engine.step())


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
