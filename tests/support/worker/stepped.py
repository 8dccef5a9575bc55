"""An engine that a test steps."""

import threading
from collections import defaultdict
from collections.abc import Callable

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.steps import Ended, SeqId
from fairlane.scheduler.protocol.messages import Lease, TokenDelta
from fairlane.worker.engine.build import planner_for
from fairlane.worker.engine.engine import Engine, StepReport
from fairlane.worker.engine.grammar import Grammars
from fairlane.worker.engine.runner import Runner
from fairlane.worker.kv.cache import KVCache
from fairlane.worker.model.reference import TransformersModel


class Client:
    """Steps an engine under a clock of its own, and keeps what a server would publish."""

    def __init__(
        self,
        model: TransformersModel,
        *,
        blocks: int = 64,
        host_slots: int = 32,
        max_sequences: int = 8,
        looks_ahead: bool | None = None,
        copies_ahead: int = 0,
        grammars: Grammars | None = None,
    ) -> None:
        cache = KVCache(model.shape, blocks=blocks, host_slots=host_slots, block_size=4)
        self.costs = CostModel()
        planner = planner_for(
            cache, self.costs, max_sequences=max_sequences, max_step_tokens=24, copies_ahead=copies_ahead
        )
        self.runner = Runner(model, cache, looks_ahead=looks_ahead, grammars=grammars)
        self.engine = Engine(planner, self.runner)
        self._ready = threading.Event()
        self.engine.on_ready = self._ready.set
        self.cache = cache
        self.tokens: dict[SeqId, list[int]] = defaultdict(list)
        self.deltas: list[TokenDelta] = []
        self.events: list[object] = []
        self.ended: dict[str, Ended] = {}
        self._now_ms = 0.0

    def add(self, job: Lease) -> None:
        self.engine.add(job, self._now_ms)

    def step(self) -> StepReport:
        report = self.engine.step(self._now_ms)
        self._now_ms += 10.0
        self.engine.planner.check_integrity()
        self.events += report.events
        for event in report.events:
            if isinstance(event, TokenDelta):
                assert event.first_index == len(self.tokens[SeqId(event.job_id, event.choice)])
                self.tokens[SeqId(event.job_id, event.choice)] += event.token_ids
                self.deltas.append(event)
        self.ended |= {ended.job_id: ended for ended in report.outcome.ended}
        return report

    def run(self, before_step: Callable[[int], None] = lambda number: None) -> None:
        """Step until nothing is left to do; nothing may be left behind either."""
        for number in range(3_000):
            if not self.engine.has_work and self.engine.epochs:  # a grammar is being compiled
                assert self._ready.wait(10.0)
                self._ready.clear()
            if not self.engine.has_work:
                break
            before_step(number)
            self.step()
        assert not self.engine.has_work
        assert self.cache.blocks == self.engine.planner.blocks_free
        assert self.cache.host_slots == self.engine.planner.host_slots_free
