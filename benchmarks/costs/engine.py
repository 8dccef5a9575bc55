"""What a step of the engine costs besides its forward pass: planning, packing, sampling, accounts, hand-over."""

import asyncio
from statistics import fmean

import torch

from benchmarks.common.leases import greedy_lease
from benchmarks.costs.counting import CallCounter
from fairlane.scheduler.planner.costs import CostModel
from fairlane.worker.engine.build import planner_for
from fairlane.worker.engine.engine import Engine
from fairlane.worker.engine.runner import Runner
from fairlane.worker.engine_thread import EngineThread
from fairlane.worker.kv.cache import KVCache, KVShape
from fairlane.worker.model.interface import Output, Packed
from fairlane.worker.reports import Report

ROWS = 64
PROMPT_TOKENS, OUTPUT_TOKENS = 16, 64
BLOCK_SIZE = 16
VOCABULARY = 256


class _StubModel:
    """Computes nothing, and counts the calls of the engine's thread from one full forward pass to the next."""

    name = "stub"
    vocab_size = VOCABULARY
    context_length = 4_096
    shape = KVShape(layers=1, kv_heads=1, head_dim=8, dtype=torch.float32)
    device = torch.device("cpu")
    backend = "sdpa"

    def __init__(self) -> None:
        self.steps: list[int] = []
        self._counter = CallCounter()
        self._is_counting = False

    def forward(self, packed: Packed, cache: KVCache) -> Output:
        """Return the same logits for every row."""
        self._counter.stop()
        if self._is_counting:
            self.steps.append(self._counter.calls)
        output = Output(torch.zeros(len(packed.logit_rows), VOCABULARY))
        self._is_counting = len(packed.token_ids) == ROWS
        if self._is_counting:
            self._counter.calls = 0
            self._counter.start()
        return output


async def _serve(model: _StubModel) -> None:
    cache = KVCache(model.shape, blocks=ROWS * 8, host_slots=0, block_size=BLOCK_SIZE)
    planner = planner_for(cache, CostModel(), max_sequences=ROWS, max_step_tokens=ROWS * PROMPT_TOKENS)
    thread = EngineThread(Engine(planner, Runner(model, cache)), "costs")
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def reported(report: Report) -> None:
        if model.steps and not report.jobs and not over.done():
            over.set_result(None)

    thread.start(reported, over.set_exception)
    prompts = ([number % VOCABULARY] * PROMPT_TOKENS for number in range(ROWS))
    thread.send(*(greedy_lease(number, prompt, OUTPUT_TOKENS) for number, prompt in enumerate(prompts)))
    await over
    await thread.stop()


def measure() -> dict[str, float]:
    """Calls by entry of the book."""
    model = _StubModel()
    asyncio.run(_serve(model))
    return {f"engine step of {ROWS} rows, calls": fmean(model.steps[:-1])}
