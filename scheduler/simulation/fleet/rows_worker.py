"""A worker without a planner: a number of rows, and steps that all take the same time.

It is what `benchmarks.fleet` runs as a process. A job's times follow from its lease at once: its prompt takes its turn
in the prefill tokens of the steps, and each later step yields a token. KV and preemption are not modelled.

A prompt goes ahead of those of lower lanes. What it delays by that are the next prompts to arrive instead of those that
it overtakes, whose times are known."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from fairlane.scheduler.planner.ordering import DECODE_WEIGHT, PREFILL_WEIGHT
from fairlane.scheduler.planner.steps import require
from fairlane.scheduler.protocol.lanes import LATENCY, LaneName
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


class Done(NamedTuple):
    """What dead workers had computed for a job."""

    # Output tokens of each choice, which its gateway has.
    tokens: int = 0
    # Weighted tokens that they had reported.
    reported: float = 0.0


NOTHING_DONE = Done()


@dataclass(slots=True)
class RunningJob:
    """One job in a worker."""

    lease: Lease
    shard: int
    output_tokens: int
    first_ms: float
    end_ms: float
    # Output tokens of each choice that an earlier worker computed.
    done: int = 0
    # Weighted tokens reported, and output tokens of all its choices.
    reported: float = 0.0
    generated: int = 0

    def tokens(self, now_ms: float, step_ms: float) -> int:
        if now_ms < self.first_ms:
            return self.done
        return min(self.output_tokens, self.done + int((now_ms - self.first_ms) / step_ms) + 1)

    def progress(self, now_ms: float, step_ms: float, ends: Outcome | None = None) -> Progress | None:
        """Return what was computed since the last report, or None if nothing was."""
        if now_ms < self.first_ms:
            return None
        job = self.lease.job
        tokens = self.output_tokens if ends else self.tokens(now_ms, step_ms)
        self.generated = job.n * tokens
        cost = self._service(tokens) - self.reported
        self.reported += cost
        return Progress(job.job_id, self.lease.epoch, self.generated, cost, ends)

    def unreported(self, now_ms: float, step_ms: float) -> float:
        return self._service(self.tokens(now_ms, step_ms)) - self.reported if now_ms >= self.first_ms else 0.0

    def _service(self, tokens: int) -> float:
        return PREFILL_WEIGHT * len(self.lease.job.prompt) + DECODE_WEIGHT * self.lease.job.n * tokens


@dataclass(slots=True)
class _PromptQueue:
    """Prompts of one lane and those above, which the prefill tokens of steps compute in turn."""

    step_tokens: int
    # The step that computes the next prompt tokens, and how many it has left.
    step: int = 0
    left: int = 0

    def enter(self, tokens: int, next_step: int) -> int:
        """Return the step that computes a prompt's last token."""
        size = self.step_tokens
        if next_step > self.step:
            self.step, self.left = next_step, size
        if tokens > self.left:
            more = -(-(tokens - self.left) // size)
            self.step += more
            self.left += more * size
        self.left -= tokens
        return self.step


@dataclass(slots=True)
class RowsWorker:
    """The rows of one worker, and its jobs. Steps are counted from `began_ms`, when it last became busy."""

    shape: RowsShape
    used: int = 0
    # Rows offered to each shard and not leased, as far as this worker knows.
    offered: Counter[int] = field(default_factory=Counter)
    running: dict[str, RunningJob] = field(default_factory=dict)
    _began_ms: float = 0.0
    # By lane, most urgent first.
    _prompts: dict[LaneName, _PromptQueue] = field(default_factory=dict)
    # Jobs by the time at which they end.
    _ending: dict[float, list[RunningJob]] = field(default_factory=dict)

    @property
    def unoffered(self) -> int:
        return self.shape.rows - self.used - self.offered.total()

    def start(
        self, lease: Lease, shard: int, output_tokens: int, now_ms: float, done: Done = NOTHING_DONE
    ) -> RunningJob:
        if not self.used:
            size = self.shape.step_tokens
            self._began_ms, self._prompts = now_ms, {lane: _PromptQueue(size, left=size) for lane in LaneName}
        first_step = self._prefill(lease.job.lane, len(lease.job.prompt) + done.tokens, now_ms)
        first_ms = self._end_of(first_step)
        end_ms = self._end_of(first_step + output_tokens - done.tokens - 1)
        self.used += lease.job.n
        self.offered[shard] -= lease.job.n
        job = RunningJob(lease, shard, output_tokens, first_ms, end_ms, *done)
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

    def _prefill(self, lane: LaneName, tokens: int, now_ms: float) -> int:
        next_step = math.ceil((now_ms - self._began_ms) / self.shape.step_ms - 1e-9)
        lanes = list(self._prompts)
        steps = [self._prompts[each].enter(tokens, next_step) for each in lanes[lanes.index(lane) :]]
        return steps[0]

    def _end_of(self, step: int) -> float:
        return self._began_ms + (step + 1) * self.shape.step_ms
