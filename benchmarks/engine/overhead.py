"""What a step takes besides the forward pass, in the engine's own thread, reporting as a worker does."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.common.leases import greedy_lease
from benchmarks.common.turns import Answer, Request
from benchmarks.engine.work import demand_tokens
from fairlane.scheduler.planner.costs import CostModel
from fairlane.worker.engine.build import planner_for
from fairlane.worker.engine.engine import Engine
from fairlane.worker.engine.runner import Runner
from fairlane.worker.engine_thread import EngineThread
from fairlane.worker.kv.cache import KVCache
from fairlane.worker.model.interface import Model, Output, Packed
from fairlane.worker.reports import Report

BLOCK_SIZE = 16


class TimedModel:
    """A model that counts the time of its forward passes."""

    def __init__(self, model: Model) -> None:
        self.name, self.vocab_size, self.context_length = model.name, model.vocab_size, model.context_length
        self.shape, self.device, self.backend = model.shape, model.device, model.backend
        self.forward_s = 0.0
        self._model = model

    def forward(self, packed: Packed, cache: KVCache) -> Output:
        """As the model's."""
        began = time.perf_counter()
        output = self._model.forward(packed, cache)
        self.forward_s += time.perf_counter() - began
        return output


class _WatchedModel(TimedModel):
    """Notes when each forward pass of the full batch began and ended, one token of each row."""

    def __init__(self, model: Model, batch: int) -> None:
        super().__init__(model)
        self.passes_s: list[tuple[float, float]] = []
        self._batch = batch

    def forward(self, packed: Packed, cache: KVCache) -> Output:
        """As the model's."""
        began = time.perf_counter()
        output = super().forward(packed, cache)
        if len(packed.token_ids) == len(packed.logit_rows) == self._batch:
            self.passes_s.append((began, time.perf_counter()))
        return output


@dataclass
class _Watch:
    """Sees every report, and when all is over."""

    over: asyncio.Event = field(default_factory=asyncio.Event)
    failure: Exception | None = None
    begun: bool = False

    def reported(self, report: Report) -> None:
        """A report came."""
        self.begun = self.begun or report.jobs > 0
        if self.begun and report.jobs == 0:
            self.over.set()

    def failed(self, error: Exception) -> None:
        """The engine broke."""
        self.failure = error
        self.over.set()


def overhead(model: TimedModel, requests: Sequence[Request]) -> Answer:
    """Serve them as one batch; the share of the steps in which all of them decode that was no forward pass. Of the
    engine's thread alone, from the beginning of one pass to that of the next."""
    passes_s = asyncio.run(_watched(model, requests))
    steps = len(passes_s) - 1
    took_s = passes_s[-1][0] - passes_s[0][0]
    forward_s = sum(ended - began for began, ended in passes_s[:-1])
    return {"share": 1.0 - forward_s / took_s, "steps": steps, "step_ms": took_s / steps * 1e3}


async def _watched(timed: TimedModel, requests: Sequence[Request]) -> list[tuple[float, float]]:
    blocks, batch = demand_tokens(requests, BLOCK_SIZE) // BLOCK_SIZE, len(requests)
    model = _WatchedModel(timed, batch)
    cache = KVCache(model.shape, blocks=blocks, host_slots=0, block_size=BLOCK_SIZE, device=model.device)
    planner = planner_for(cache, CostModel(), max_sequences=batch)
    thread = EngineThread(Engine(planner, Runner(model, cache)), "benchmark")
    watch = _Watch()
    thread.start(watch.reported, watch.failed)
    thread.send(*(greedy_lease(number, *one) for number, one in enumerate(requests)))
    await watch.over.wait()
    await thread.stop()
    if watch.failure is not None:
        raise watch.failure
    return model.passes_s
