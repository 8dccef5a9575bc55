"""The outbox: tokens reach the store once and in order, whether or not it is there."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest
import redis

from fairlane.scheduler.protocol.messages import Event, Finished, Outcome, Preempted, TokenDelta
from fairlane.scheduler.queue.types import Publication
from fairlane.store.retry import StoreLink
from fairlane.worker.publisher import Publisher, merged
from fairlane.worker.reports import token_runs

pytestmark = pytest.mark.anyio
LIMIT_S = 5.0


def delta(first_index: int, *token_ids: int, choice: int = 0, job_id: str = "f") -> TokenDelta:
    return TokenDelta(job_id=job_id, epoch=1, choice=choice, first_index=first_index, token_ids=token_ids)


def step(*events: Event, cost: float = 2.0, ends: Outcome | None = None, epoch: int = 1) -> Publication:
    job_id = events[0].job_id
    return Publication(job_id, epoch, tuple(events), token_runs(events), cost, ends)


PREEMPTED = Preempted(job_id="f", choice=0, mode="swap", blocks=3, predicted_ms=1.0)
FINISHED = Finished(job_id="f", epoch=1, outcome=Outcome.FINISHED)


@dataclass
class Store:
    """Takes publications as the queue does; `gate` holds the answer back, `failures` are raised first."""

    calls: list[tuple[str, list[Publication], str]] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    refuse: frozenset[str] = frozenset()
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    called: asyncio.Event = field(default_factory=asyncio.Event)

    async def publish(self, gateway_id: str, publications: Sequence[Publication], serial: str) -> set[str]:
        self.calls.append((gateway_id, list(publications), serial))
        self.called.set()
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        return {each.job_id for each in publications} & self.refuse


@dataclass
class Post:
    """An outbox at work, and what it said to its owner."""

    store: Store
    most_events: int = 1_000
    settled: list[tuple[list[str], set[str]]] = field(default_factory=list)
    full: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.outbox = Publisher(
            self.store.publish,
            StoreLink(5.0),
            on_settled=lambda sent, refused: self.settled.append(([each.job_id for each in sent], refused)),
            on_full=self.full.append,
            most_events=self.most_events,
        )
        self._task = asyncio.create_task(self.outbox.run())

    async def emptied(self) -> None:
        self.store.gate.set()
        await asyncio.wait_for(self.outbox.emptied(), LIMIT_S)
        self._task.cancel()


async def test_a_step_is_one_call_per_gateway() -> None:
    post = Post(Store())
    post.outbox.put({"g1": [step(delta(0, 7)), step(delta(0, 8, job_id="f2"))], "g2": [step(delta(0, 9))]})
    await post.emptied()
    assert sorted((gateway, len(items)) for gateway, items, _ in post.store.calls) == [("g1", 2), ("g2", 1)]


async def test_steps_that_pass_during_a_call_are_merged_into_the_next() -> None:
    post = Post(Store())
    post.outbox.put({"g": [step(delta(0, 5))]})
    await asyncio.wait_for(post.store.called.wait(), LIMIT_S)
    post.outbox.put({"g": [step(delta(1, 6))]})
    post.outbox.put({"g": [step(delta(2, 7), FINISHED, ends=Outcome.FINISHED)]})
    await post.emptied()
    second = post.store.calls[1][1]
    assert second == [step(delta(1, 6, 7), FINISHED, cost=4.0, ends=Outcome.FINISHED)]


async def test_a_failed_call_is_repeated_unchanged_and_before_all_later_ones() -> None:
    post = Post(Store(failures=[redis.ConnectionError(), redis.TimeoutError()]))
    post.outbox.put({"g": [step(delta(0, 5))]})
    await asyncio.wait_for(post.store.called.wait(), LIMIT_S)
    post.outbox.put({"g": [step(delta(1, 6))]})
    await post.emptied()
    first, second, third, last = post.store.calls
    assert first == second == third
    assert last[1] == [step(delta(1, 6))]
    assert last[2] != first[2]


async def test_refused_jobs_are_told_to_the_owner() -> None:
    post = Post(Store(refuse=frozenset({"f"})))
    post.outbox.put({"g": [step(delta(0, 5)), step(delta(0, 5, job_id="f2"))]})
    await post.emptied()
    assert post.settled == [(["f", "f2"], {"f"})]


async def test_two_epochs_of_a_job_go_in_order_and_have_an_answer_each() -> None:
    """Refused by its job's id alone, the older one would take the newer one's lease with it."""
    post = Post(Store())
    post.outbox.put({"g": [step(delta(4, 5)), step(delta(0, 8, job_id="f2"))]})
    post.outbox.put({"g": [step(delta(2, 9), epoch=2)]})
    await post.emptied()
    assert [[(each.job_id, each.epoch) for each in sent] for _, sent, _ in post.store.calls] == [
        [("f", 1), ("f2", 1)],
        [("f", 2)],
    ]
    assert len({serial for _, _, serial in post.store.calls}) == 2
    assert post.settled == [(["f", "f2"], set()), (["f"], set())]


async def test_the_engine_is_held_while_too_much_waits_and_let_go_when_it_is_heard() -> None:
    post = Post(Store(), most_events=4)
    post.outbox.put({"g": [step(delta(0, 5))]})
    post.outbox.put({"g": [step(delta(1, 5))]})
    assert post.full == []
    post.outbox.put({"g": [step(delta(2, 5))]})
    assert (post.full, post.outbox.is_full) == ([True], True)
    await post.emptied()
    assert (post.full, post.outbox.is_full) == ([True, False], False)


def test_merging_keeps_the_order_of_a_choices_events_and_makes_one_run_of_its_tokens() -> None:
    older = step(delta(0, 1), delta(0, 2, choice=1), PREEMPTED)
    newer = step(delta(1, 3), delta(1, 4, choice=1))
    both = merged(older, newer)
    assert both.events == (delta(0, 1), delta(0, 2, 4, choice=1), PREEMPTED, delta(1, 3))
    assert both.tokens == ((0, 0, (1, 3)), (1, 0, (2, 4)))


def test_merging_keeps_what_was_said_with_the_first_token() -> None:
    first = msgspec.structs.replace(delta(0, 1), cached_tokens=16)

    assert merged(step(first), step(delta(1, 2))).events == (msgspec.structs.replace(delta(0, 1, 2), cached_tokens=16),)
