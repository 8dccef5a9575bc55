"""Whatever arrives, leaves, fails or is preempted: no block leaks, every request ends, and no token differs."""

from collections.abc import Set
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Job, Outcome, YieldMode
from tests.support.scheduler.kv_runner import expected_output
from tests.support.scheduler.planner_world import LATENCY, THROUGHPUT, World, job

MOST_JOBS = 7
STEPS_TO_END = 1_500


class PlannerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, Job] = {}
        self.granted: dict[str, int] = {}
        self.forced = False

    @initialize(
        kv_tokens=st.integers(24, 72),
        host_slots=st.integers(0, 10),
        block_size=st.integers(1, 5),
        max_sequences=st.integers(1, 5),
        max_step_tokens=st.integers(1, 16),
        window=st.sampled_from([4.0, 4096.0]),
        prefix_share=st.sampled_from([None, 0.1, 1.0]),
        copies_ahead=st.sampled_from([0, 1, 4]),
        share_floor=st.sampled_from([0.05, 0.4]),
    )
    def start(
        self,
        kv_tokens: int,
        host_slots: int,
        block_size: int,
        max_sequences: int,
        max_step_tokens: int,
        window: float,
        prefix_share: float | None,
        copies_ahead: int,
        share_floor: float,
    ) -> None:
        self.world = World(
            blocks=kv_tokens // block_size,
            host_slots=host_slots,
            block_size=block_size,
            max_sequences=max_sequences,
            max_step_tokens=max_step_tokens,
            window=window,
            prefix_share=prefix_share,
            copies_ahead=copies_ahead,
            lanes={**DEFAULT_LANES, THROUGHPUT: replace(DEFAULT_LANES[THROUGHPUT], share_floor=share_floor)},
        )

    @property
    def live(self) -> list[str]:
        return self.world.planner.job_ids()

    @precondition(lambda self: len(self.live) < MOST_JOBS)
    @rule(
        lane=st.sampled_from([LATENCY, THROUGHPUT]),
        n=st.integers(1, 3),
        prompt=st.integers(1, 18),
        max_tokens=st.integers(1, 12),
        part_granted=st.booleans(),
        exact=st.booleans(),
        guaranteed=st.booleans(),
        stops=st.booleans(),
        tenant=st.sampled_from(["acme", "globex"]),
        text=st.sampled_from(["", "one", "two"]),
        grouped=st.booleans(),
    )
    def add(
        self,
        lane: str,
        n: int,
        prompt: int,
        max_tokens: int,
        part_granted: bool,
        exact: bool,
        guaranteed: bool,
        stops: bool,
        tenant: str,
        text: str,
        grouped: bool,
    ) -> None:
        granted = max_tokens // 2 if part_granted else max_tokens
        one = job(
            f"job-{len(self.jobs)}",
            LATENCY if lane == LATENCY else THROUGHPUT,
            n=n,
            prompt=prompt,
            max_tokens=max_tokens,
            granted_until=granted,
            exact=exact,
            guaranteed=guaranteed,
            stop=tuple(range(5)) if stops else (),
            tenant=tenant,
            text=text,
            share_group="both" if grouped else "",
        )
        self.jobs[one.job_id] = one
        self.granted[one.job_id] = granted
        self.world.add(one)

    @precondition(lambda self: self.live)
    @rule(times=st.integers(1, 8))
    def step(self, times: int) -> None:
        for _ in range(times):
            self._step({})

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def step_with_a_failing_row(self, data: st.DataObject) -> None:
        one = self.jobs[data.draw(st.sampled_from(self.live))]
        self._step({SeqId(one.job_id, data.draw(st.integers(0, one.n - 1))): "NaN"})

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def step_of_which_a_part_is_still_on_its_way(self, data: st.DataObject) -> None:
        late = {SeqId(job_id, choice) for job_id in self.live for choice in range(self.jobs[job_id].n)}
        self._step({}, data.draw(st.sets(st.sampled_from(sorted(late)))))

    def _step(self, failing: dict[SeqId, str], late: Set[SeqId] = frozenset()) -> None:
        runnable = self._something_can_run()
        plan, outcome = self.world.step(failing, late)
        assert not late & {produced.seq for produced in outcome.produced}
        is_held = any(map(self._keeps_its_blocks, self.live))
        assert plan.rows or not runnable or self.forced or is_held, "work stands ready and nothing runs"
        self.forced = False

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ended = self.world.planner.cancel(data.draw(st.sampled_from(self.live)))
        assert ended is not None
        assert ended.outcome is Outcome.CANCELLED
        self.world.ended[ended.job_id] = ended
        self.world.planner.check_integrity()

    @precondition(lambda self: self.live)
    @rule(data=st.data(), more=st.integers(0, 6))
    def grant(self, data: st.DataObject, more: int) -> None:
        job_id = data.draw(st.sampled_from(self.live))
        self._grant(job_id, self.granted[job_id] + more)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), mode=st.sampled_from(["swap", "recompute"]), blocks=st.none() | st.integers(1, 5))
    def preempt(self, data: st.DataObject, mode: YieldMode, blocks: int | None) -> None:
        one = self.jobs[data.draw(st.sampled_from(self.live))]
        self.world.planner.preempt(SeqId(one.job_id, data.draw(st.integers(0, one.n - 1))), mode, blocks)
        self.forced = True

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def lose_and_take_again(self, data: st.DataObject) -> None:
        """Its lease lapsed, and this worker takes it again with what was published."""
        one = self.jobs[data.draw(st.sampled_from(self.live))]
        published = tuple(tuple(self.world.outputs[SeqId(one.job_id, choice)]) for choice in range(one.n))
        self.world.planner.drop(one.job_id)
        self.world.planner.check_integrity()
        self.world.add(one, generated=published)
        self._grant(one.job_id, self.granted[one.job_id])

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for one in self.jobs.values():
            self._grant(one.job_id, one.max_tokens)
        self.world.finish(STEPS_TO_END)
        assert self.world.planner.blocks_free == self.world.blocks
        assert self.world.planner.host_slots_free == self.world.host_slots
        for one in self.jobs.values():
            self._check_end(one)

    def _check_end(self, one: Job) -> None:
        outcome = self.world.ended[one.job_id].outcome
        if -(-one.max_total_tokens // self.world.block_size) > self.world.blocks:
            assert outcome is Outcome.FAILED
        for choice in range(one.n):
            expected = expected_output(one, choice)
            output = self.world.outputs[SeqId(one.job_id, choice)]
            assert output == (expected if outcome is Outcome.FINISHED else expected[: len(output)])

    def _grant(self, job_id: str, granted_until: int) -> None:
        self.granted[job_id] = max(self.granted[job_id], granted_until)
        self.world.planner.grant(job_id, granted_until)

    def _keeps_its_blocks(self, job_id: str) -> bool:
        """Exact work at its grant may not be computed again, and perhaps there is no room in the host."""
        made = (len(self.world.outputs[SeqId(job_id, choice)]) for choice in range(self.jobs[job_id].n))
        return self.jobs[job_id].exact and max(made) >= self.granted[job_id]

    def _something_can_run(self) -> bool:
        return any(
            len(self.world.outputs[SeqId(job_id, choice)])
            < min(self.granted[job_id], len(expected_output(self.jobs[job_id], choice)))
            for job_id in self.live
            for choice in range(self.jobs[job_id].n)
        )


TestPlannerMachine = pytest.mark.slow(PlannerMachine.TestCase)
TestPlannerMachine.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
