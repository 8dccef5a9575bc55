"""An upper bound, no published policy: what a scheduler could do that knows output lengths and has KV without end.

Every token is a job with a due time, and each step takes them in order of these: preemptive EDF, at no cost, since
nothing ever has to leave. A step is as long as the tightest token in it, and those left out of it, allow: prompts
fill it up in chunks, but none begins to decode that would cost the others their row per TPOT. Decodes that are ahead
of the first prompt's deadline wait while there are prompts. What cannot be in time even by itself is dropped, and of
the prompts that cannot all be in time as many of the longest as it takes (Moore-Hodgson, which leaves the fewest
late).

It does not know future arrivals, so it is a bound for on-line schedulers in practice and not a proven one.
"""

import heapq
import math
from bisect import insort
from dataclasses import dataclass
from itertools import islice

from benchmarks.scheduling.policies.base import Engine
from benchmarks.scheduling.policies.setup import Request, Setup, first_due_ms, prefill_within
from fairlane.scheduler.planner.sequence import State
from fairlane.scheduler.planner.steps import StepFeatures, StepResult, require
from fairlane.scheduler.protocol.messages import Job, Outcome

FORESIGHT = 256
"""Prompts, the most urgent first, that are checked together: the fate of the first does not depend on the last."""
SHARE_KEPT = 0.98


@dataclass(slots=True, eq=False)
class Known(Request):
    """A request whose output length is known."""

    base_ms: float = 0.0
    """What the due times of its later tokens count from."""

    @property
    def due_ms(self) -> float:
        """When its next token is due."""
        return self.base_ms + len(self.output) * self.job.tpot_ms


class Clairvoyant(Engine[Known]):
    """Preemptive EDF over tokens with exact lengths, free preemption, unlimited KV and steps sized by time."""

    def __init__(self, setup: Setup, *, longest_step_ms: float | None = None) -> None:
        super().__init__(setup, Known)
        self._lengths = setup.oracle("clairvoyant")
        least_ttft_ms = min(lane.ttft_ms for lane in setup.lanes.values())
        self._longest_step_ms = least_ttft_ms / 4.0 if longest_step_ms is None else longest_step_ms
        require("longest_step_ms", self._longest_step_ms, 0.001)
        self._prompts: list[Known] = []
        """Not yet computed to the end, the most urgent first."""
        self._arrived = False
        self._share = 1.0
        """Of the time while prompts wait, what they get."""
        self._prompt_ms = 0.0

    def _refusal(self, job: Job) -> str:
        return "" if job.n == 1 and job.prompt else "a policy runs one choice of a prompt that is not empty"

    def _enqueue(self, request: Known, now_ms: float) -> None:
        due_ms = first_due_ms(request.job, request.arrived_ms, self._lengths(request.id.job_id))
        request.first_due_ms = request.base_ms = due_ms
        insort(self._prompts, request, key=lambda one: (one.first_due_ms, one.number))
        self._arrived = True

    def _schedule(self, now_ms: float) -> None:
        self._drop_late(now_ms)
        decodes = sorted(self._running, key=lambda one: (one.due_ms, one.number))
        decodes_ms = self._decodes_ms(decodes)
        joining = self._joining(decodes, decodes_ms, now_ms)
        for request in decodes[:joining]:
            self._put(request, 1)
        limit_ms = self._limit_ms(decodes, joining, decodes_ms, now_ms)
        before_ms = self._step_ms()
        self._fill(limit_ms)
        self._prompt_ms = self._step_ms() - before_ms
        if self._step_ms() < limit_ms and self._tokens_left > 0:
            self._add_ahead(decodes[joining:], limit_ms)

    def _joining(self, decodes: list[Known], decodes_ms: float, now_ms: float) -> int:
        """How many decodes come before the first prompt: those due earlier, or too soon to be left out."""
        rows = self._setup.max_sequences
        if not self._prompts:
            return min(rows, len(decodes))
        horizon_ms = max(self._prompts[0].first_due_ms, now_ms + 2.0 * decodes_ms)
        return min(max(1, rows - 1), sum(request.due_ms <= horizon_ms for request in decodes))

    def _limit_ms(self, decodes: list[Known], joining: int, decodes_ms: float, now_ms: float) -> float:
        """How long the step may take: what is late already gets steps of half its TPOT, so that it can catch up, and
        the rows of all steps together give each decode one row per TPOT."""
        limits = [self._longest_step_ms]
        if joining:
            slack_ms = decodes[0].due_ms - now_ms
            limits.append(slack_ms if slack_ms >= decodes_ms else 0.5 * decodes[0].job.tpot_ms)
        if joining < len(decodes):
            limits.append(max(decodes_ms, decodes[joining].due_ms - now_ms - decodes_ms))
        if self._prompts:
            limits.append(self._prompts[0].first_due_ms - now_ms)
        if self._prompts and decodes:
            rates = sum(1.0 / request.job.tpot_ms for request in (*decodes, self._prompts[0]))
            limits.append(max(1, self._setup.max_sequences - 1) / rates - self._setup.hardware.overhead_ms)
        return min(limits)

    def _fill(self, limit_ms: float) -> None:
        """Chunks of prompts, the most urgent first, as long as the time lasts."""
        for request in islice(self._prompts, self._setup.max_sequences - len(self._rows)):
            most = min(request.pending, self._tokens_left)
            count = prefill_within(self._setup.hardware, limit_ms - self._step_ms(), request.num_computed, most)
            if count == 0 and not self._rows:
                count = min(most, 1)
            if count == 0:
                return
            if request.state is State.WAITING:
                request.move(State.PREFILL)
            self._put(request, count)

    def _add_ahead(self, decodes: list[Known], limit_ms: float) -> None:
        rows = self._setup.max_sequences - len(self._rows)
        for request in decodes[: min(rows, self._tokens_left)]:
            if self._step_ms() >= limit_ms:
                return
            self._put(request, 1)

    def _step_ms(self) -> float:
        base_ms, row_ms, token_ms, context_ms, pair_ms = self._setup.hardware.step
        work_ms = token_ms * self._prefill_tokens + context_ms * self._context + pair_ms * self._attention
        return base_ms + row_ms * len(self._rows) + work_ms

    def _decodes_ms(self, decodes: list[Known]) -> float:
        work = StepFeatures(len(decodes), 0, sum(request.length for request in decodes), 0)
        return self._setup.hardware.step_ms(work) + self._setup.hardware.overhead_ms

    def _served(self, result: StepResult, now_ms: float) -> None:
        if self._prompts:
            share = self._prompt_ms / max(1e-9, result.run_ms + self._setup.hardware.overhead_ms)
            self._share = SHARE_KEPT * self._share + (1.0 - SHARE_KEPT) * min(1.0, share)
        began = [one for row, one in zip(self._rows, self._picked, strict=True) if row.samples and not row.output_index]
        for request in began:
            request.base_ms = max(request.first_due_ms, now_ms)
        if began:
            self._prompts = [request for request in self._prompts if not request.output]
            self._running += [request for request in began if request.state is State.DECODE]

    def _drop_late(self, now_ms: float) -> None:
        while self._prompts and now_ms + self._alone_ms(self._prompts[0]) > self._prompts[0].first_due_ms:
            self._give_up(self._prompts[0])
        if self._arrived:
            self._arrived = False
            self._drop_longest(now_ms)

    def _drop_longest(self, now_ms: float) -> None:
        """Moore-Hodgson over the most urgent prompts, at the share of the time that prompts have lately had."""
        kept: list[tuple[float, int, Known]] = []
        ends_ms, hopeless = now_ms, []
        for request in islice(self._prompts, FORESIGHT):
            takes_ms = self._marginal_ms(request) / self._share
            heapq.heappush(kept, (-takes_ms, request.number, request))
            ends_ms += takes_ms
            if ends_ms > request.first_due_ms:
                longest = heapq.heappop(kept)
                ends_ms += longest[0]
                hopeless.append(longest[2])
        for request in hopeless:
            self._give_up(request)

    def _give_up(self, request: Known) -> None:
        self._prompts.remove(request)
        self._end(request, Outcome.EXPIRED, "it cannot be in time")

    def _alone_ms(self, request: Known) -> float:
        """The time that its prompt takes if nothing else runs."""
        hardware = self._setup.hardware
        steps = math.ceil(request.pending / self._setup.max_step_tokens)
        return steps * (hardware.step[0] + hardware.overhead_ms) + self._marginal_ms(request)

    def _marginal_ms(self, request: Known) -> float:
        """The time that the rest of its prompt adds to steps that run anyway, at the least."""
        _, row_ms, token_ms, _, pair_ms = self._setup.hardware.step
        pending = request.pending
        pairs = pending * (request.num_computed + pending) if pending <= self._setup.max_step_tokens else 0
        return row_ms + token_ms * pending + pair_ms * max(pairs, pending * request.num_computed)
