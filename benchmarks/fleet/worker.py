"""Workers of a checkout without a model: everything of theirs is real, but a step only waits.

Run as a file with the checkout on the path, so that `fairlane` and the other benchmarks are the checkout's:

    python …/benchmarks/fleet/worker.py STORE_URL WORKERS ROWS STEP_MS

Each token is the time at which its step ended, in ticks of the system's monotonic clock: a client on the same machine
sees how long it was under way. Several workers in one process share its interpreter; use them where they are idle."""

import asyncio
import os
import sys
import time
from collections.abc import Callable

import msgspec
import uvloop
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.gateway import instant
from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.planner.steps import StepPlan, StepResult
from fairlane.scheduler.protocol.messages import Lease, ModelCard
from fairlane.worker import runtime
from fairlane.worker.config import WorkerSettings
from fairlane.worker.engine.engine import Engine, LookAhead, OpenedEngine, StepRunner

MODEL, TICKS, TICK_S = "fleet", 2**15, 1e-4
BLOCK_TOKENS, SEQUENCE_TOKENS, MAX_STEP_TOKENS = 16, 2_048, 4_096


def card() -> ModelCard:
    """Return a model that reads letter by letter and answers in numbers, whose token ids are the numbers themselves."""
    numbers = {f"\u0120{number}": number for number in range(TICKS)}  # as byte-level models write a space
    letters = {letter: TICKS + place for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=numbers | letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*instant.SPECIAL])
    return msgspec.structs.replace(
        instant.card(),
        model=MODEL,
        tokenizer_json=tokenizer.to_str(),
        vocab_size=tokenizer.get_vocab_size(),
        eos_token_ids=(tokenizer.token_to_id(instant.SPECIAL[1]),),
    )


class WaitingRunner(StepRunner):
    """Computes nothing: every step takes the same time, whatever its rows."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    def register(self, lease: Lease) -> None: ...

    def forget(self, job_id: str) -> None: ...

    def run(self, plan: StepPlan, on_forward: Callable[[], None], look_ahead: LookAhead) -> StepResult:
        ends_s = time.monotonic() + self._step_s
        on_forward()
        time.sleep(max(0.0, ends_s - time.monotonic()))
        token = int(time.monotonic() / TICK_S) % TICKS
        tokens = {row.seq: token for row in plan.rows if row.samples}
        return StepResult(number=plan.number, tokens=tokens, run_ms=self._step_s * 1e3)


def opened(settings: WorkerSettings, known: ModelCard, rows: int, step_s: float) -> OpenedEngine:
    """Open an engine with room for this number of sequences."""
    planner = Planner(
        lanes=settings.lanes.lanes(),
        block_size=BLOCK_TOKENS,
        blocks=rows * SEQUENCE_TOKENS // BLOCK_TOKENS,
        host_slots=0,
        max_sequences=rows,
        max_step_tokens=MAX_STEP_TOKENS,
        costs=(costs := CostModel()),
    )
    return OpenedEngine(Engine(planner, WaitingRunner(step_s)), known, costs, MAX_STEP_TOKENS)


async def serve(store_url: str, workers: int, rows: int, step_s: float) -> None:
    """Serve until one of the workers ends."""
    settings, known = WorkerSettings(redis_url=store_url), card()
    engines = [opened(settings, known, rows, step_s) for _ in range(workers)]
    tasks = [asyncio.create_task(runtime._serve(settings, os.environ, engine)) for engine in engines]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


if __name__ == "__main__":
    url, count, sequences, step_ms = sys.argv[1:]
    uvloop.run(serve(url, int(count), int(sequences), float(step_ms) / 1e3))
