"""A worker without a planner: a number of rows, and steps that all take the same time.

It is what `benchmarks.fleet` runs as a process. A job's times follow from its lease at once: its prompt takes its turn
in the prefill tokens of the steps, and each later step yields a token. KV and preemption are not modelled."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from fairlane.scheduler.planner.ordering import DECODE_WEIGHT, PREFILL_WEIGHT
from fairlane.scheduler.planner.steps import require
from fairlane.scheduler.protocol.lanes import LATENCY
from fairlane.scheduler.protocol.messages import Lease, Outcome
from fairlane.scheduler.queue.types import Progress
from fairlane.scheduler.simulation.calibration import Calibration
from fairlane.scheduler.simulation.trace import TraceRow

ROWS, STEP_MS, STEP_TOKENS = 64, 30.0, 4_096
MAX_ROWS, MAX_STEP_MS, MAX_STEP_TOKENS = 65_536, 1e6, 1e6
_PART = re.compile(r"(\w+)=(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsShape:
    """The size of such a worker."""

    rows: int = ROWS
    step_ms: float = STEP_MS
    # Prompt tokens that a step computes, in addition to the rows.
    step_tokens: int = STEP_TOKENS

    def __post_init__(self) -> None:
        require("rows", self.rows, 1, MAX_ROWS)
        require("step_ms", self.step_ms, 0.1, MAX_STEP_MS)
        require("step_tokens", self.step_tokens, 1, MAX_STEP_TOKENS)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `rows=64,step_ms=30,step_tokens=4096`; what is not named has its default. Raises ValueError."""
        known: dict[str, float] = {"rows": ROWS, "step_ms": STEP_MS, "step_tokens": STEP_TOKENS}
        for part in text.split(","):
            found = _PART.fullmatch(part.strip())
            if found is None or found[1] not in known:
                raise ValueError(f"workers-as must be such as rows=64,step_ms=30, not {part[:40]!r}")
            known[found[1]] = float(found[2])
        return cls(rows=int(known["rows"]), step_ms=known["step_ms"], step_tokens=int(known["step_tokens"]))

    @classmethod
    def like(cls, calibration: Calibration, rows: Sequence[TraceRow]) -> Self:
        """Return a worker as fast as a calibrated one that is busy with requests of this mean size: as many rows as KV
        and the latency lane's pace allow, and the step that they and their prompts take."""
        prompt = sum(row.prompt_tokens for row in rows) / len(rows)
        output = sum(row.output_tokens for row in rows) / len(rows)
        base_ms = calibration.step[0] + calibration.overhead_ms
        _, per_row, token, context, pair = calibration.step
        # A row's own token, and the prompt tokens that are computed for each token of an output.
        row_ms = per_row + context * (prompt + output / 2.0) + prompt / output * (token + pair * prompt / 2.0)
        in_pace = (LATENCY.tpot_on(calibration.single_stream_ms) - base_ms) / row_ms if row_ms else MAX_ROWS
        used = max(1, int(min(calibration.max_sequences, calibration.kv_tokens / (prompt + output), in_pace)))
        return cls(rows=used, step_ms=base_ms + used * row_ms, step_tokens=calibration.max_step_tokens)

    def chats_per_s(self, prompt_tokens: float, output_tokens: float) -> float:
        decode = self.rows / (output_tokens * self.step_ms / 1e3)
        return min(decode, self.step_tokens / (prompt_tokens * self.step_ms / 1e3))


@dataclass(slots=True)
class RunningJob:
    """One job in a worker."""

    lease: Lease
    shard: int
    output_tokens: int
    first_ms: float
    end_ms: float
    # Weighted tokens reported, and output tokens of all its choices.
    reported: float = 0.0
    generated: int = 0

    def progress(self, now_ms: float, step_ms: float, ends: Outcome | None = None) -> Progress | None:
        """Return what was computed since the last report, or None if nothing was."""
        if now_ms < self.first_ms:
            return None
        job = self.lease.job
        tokens = self.output_tokens if ends else min(self.output_tokens, int((now_ms - self.first_ms) / step_ms) + 1)
        self.generated = job.n * tokens
        service = PREFILL_WEIGHT * len(job.prompt) + DECODE_WEIGHT * self.generated
        cost, self.reported = service - self.reported, service
        return Progress(job.job_id, self.lease.epoch, self.generated, cost, ends)


@dataclass(slots=True)
class RowsWorker:
    """The rows of one worker, and its jobs. Steps are counted from `began_ms`, when it last became busy."""

    shape: RowsShape
    used: int = 0
    # Rows offered to each shard and not leased, as far as this worker knows.
    offered: Counter[int] = field(default_factory=Counter)
    running: dict[str, RunningJob] = field(default_factory=dict)
    _began_ms: float = 0.0
    # The step that computes the next prompt tokens, and how many it has left.
    _prefill_step: int = 0
    _prefill_left: int = 0
    # Jobs by the time at which they end.
    _ending: dict[float, list[RunningJob]] = field(default_factory=dict)

    @property
    def unoffered(self) -> int:
        return self.shape.rows - self.used - self.offered.total()

    def start(self, lease: Lease, shard: int, output_tokens: int, now_ms: float) -> RunningJob:
        if not self.used:
            self._began_ms, self._prefill_step, self._prefill_left = now_ms, 0, self.shape.step_tokens
        first_step = self._prefill(len(lease.job.prompt), now_ms)
        first_ms = self._end_of(first_step)
        end_ms = self._end_of(first_step + output_tokens - 1)
        self.used += lease.job.n
        self.offered[shard] -= lease.job.n
        job = RunningJob(lease, shard, output_tokens, first_ms, end_ms)
        self.running[lease.job.job_id] = job
        self._ending.setdefault(end_ms, []).append(job)
        return job

    def is_new_end(self, end_ms: float) -> bool:
        return len(self._ending[end_ms]) == 1

    def end(self, now_ms: float) -> list[RunningJob]:
        ended = self._ending.pop(now_ms)
        for job in ended:
            self.used -= job.lease.job.n
            del self.running[job.lease.job.job_id]
        return ended

    def progress(self, shard: int, now_ms: float) -> list[Progress]:
        """Return what was computed for the jobs of one shard since their last report."""
        jobs: Iterable[RunningJob] = (job for job in self.running.values() if job.shard == shard)
        found = (job.progress(now_ms, self.shape.step_ms) for job in jobs)
        return [progress for progress in found if progress is not None and progress.cost]

    def _prefill(self, tokens: int, now_ms: float) -> int:
        size = self.shape.step_tokens
        next_step = math.ceil((now_ms - self._began_ms) / self.shape.step_ms - 1e-9)
        if next_step > self._prefill_step:
            self._prefill_step, self._prefill_left = next_step, size
        if tokens > self._prefill_left:
            more = -(-(tokens - self._prefill_left) // size)
            self._prefill_step += more
            self._prefill_left += more * size
        self._prefill_left -= tokens
        return self._prefill_step

    def _end_of(self, step: int) -> float:
        return self._began_ms + (step + 1) * self.shape.step_ms
