"""A worker process of a checkout, whose engine says the same words to everyone and whose steps only wait.

Run as a file with the checkout on the path, so that all but this file is the checkout's:

    python -P …/mock_worker.py STORE_URL LEASE_S MODEL STEP_S"""

import os
import sys
import time
from collections.abc import Callable

import msgspec
import uvloop

from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.planner.steps import StepPlan, StepResult
from fairlane.scheduler.protocol.messages import Lease
from fairlane.worker import runtime
from fairlane.worker.config import WorkerSettings
from fairlane.worker.engine.engine import Engine, LookAhead, OpenedEngine, StepRunner
from tests.support.gateway.cards import byte_level_card

WORDS = "The capital of France is Paris. "
ROWS, BLOCKS, BLOCK_TOKENS, MAX_STEP_TOKENS = 32, 2_048, 16, 4_096


class WaitingRunner(StepRunner):
    """Token `i` of each choice is that of endlessly repeated words."""

    def __init__(self, words: tuple[int, ...], step_s: float) -> None:
        self._words, self._step_s = words, step_s

    def register(self, lease: Lease) -> None: ...

    def forget(self, job_id: str) -> None: ...

    def forget_tenant(self, tenant: str) -> None: ...

    def run(self, plan: StepPlan, on_forward: Callable[[], None], look_ahead: LookAhead) -> StepResult:
        on_forward()
        time.sleep(self._step_s)
        tokens = {row.seq: self._words[row.output_index % len(self._words)] for row in plan.rows if row.samples}
        return StepResult(number=plan.number, tokens=tokens, run_ms=self._step_s * 1e3)


async def serve(store_url: str, lease_s: float, model: str, step_s: float) -> int:
    """Serve until a signal, as a worker does."""
    settings = WorkerSettings(redis_url=store_url, lease_s=lease_s)
    card = msgspec.structs.replace(byte_level_card(), model=model)
    planner = Planner(
        lanes=settings.lanes.lanes(),
        block_size=BLOCK_TOKENS,
        blocks=BLOCKS,
        host_slots=0,
        max_sequences=ROWS,
        max_step_tokens=MAX_STEP_TOKENS,
        costs=(costs := CostModel()),
    )
    engine = Engine(planner, WaitingRunner(tuple(TextModel(card).encode(WORDS)), step_s))
    return await runtime._serve(settings, os.environ, OpenedEngine(engine, card, costs, MAX_STEP_TOKENS))


if __name__ == "__main__":
    url, lease, name, step = sys.argv[1:]
    sys.exit(uvloop.run(serve(url, float(lease), name, float(step))))
