"""A planner and a simulated runner together, with time by hand: what the planner's tests drive."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import TypeVar

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.kv.prefix_cache import Scope
from fairlane.scheduler.planner.kv.prefix_reuse import scope_of
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.planner.steps import Ended, Row, SeqId, StepOutcome, StepPlan
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, Lane, LaneName
from fairlane.scheduler.protocol.messages import Job, Lease, Outcome, Paused, Preempted, Resumed, Sampling
from tests.support.scheduler.kv_runner import KvRunner, expected_output

E = TypeVar("E", Preempted, Resumed, Paused)

LATENCY, THROUGHPUT = LaneName.LATENCY, LaneName.THROUGHPUT


def job(
    job_id: str,
    lane: LaneName = THROUGHPUT,
    *,
    prompt: int = 8,
    max_tokens: int = 8,
    n: int = 1,
    tenant: str = "acme",
    granted_until: int | None = None,
    stop: tuple[int, ...] = (),
    min_tokens: int = 0,
    deadline_ms: float | None = None,
    hard_ttft_ms: float | None = None,
    guaranteed: bool = False,
    exact: bool = False,
    text: str = "",
    share_group: str = "",
) -> Job:
    """A job whose prompt is `prompt` tokens that no other job's prompt begins with; those of a `text`, if given."""
    start = sum((text or job_id).encode())
    return Job(
        job_id=job_id,
        gateway_id="gateway",
        tenant=tenant,
        lane=lane,
        prompt=tuple((start + 7 * position) % 1000 for position in range(prompt)),
        n=n,
        max_tokens=max_tokens,
        granted_until=max_tokens if granted_until is None else granted_until,
        sampling=Sampling(stop_token_ids=stop, min_tokens=min_tokens),
        ttft_ms=DEFAULT_LANES[lane].ttft_ms,
        tpot_ms=DEFAULT_LANES[lane].tpot_ms,
        deadline_ms=deadline_ms,
        hard_ttft_ms=hard_ttft_ms,
        guaranteed=guaranteed,
        exact=exact,
        share_group=share_group,
    )


class Owners:
    """Whose tokens every block and host slot holds."""

    def __init__(self, block_size: int) -> None:
        self.jobs: dict[str, Job] = {}
        self._block_size = block_size
        self._blocks: dict[int, Scope] = {}
        self._slots: dict[int, Scope] = {}

    def check(self, plan: StepPlan) -> None:
        """Nobody reads what another scope has written."""
        self._slots |= {copy.target: self._blocks[copy.source] for copy in plan.swap_out}
        self._blocks |= {copy.target: self._slots[copy.source] for copy in plan.swap_in}
        for row in plan.rows:
            scope = scope_of(self.jobs[row.seq.job_id])
            for block in row.block_table[row.first_position // self._block_size :]:
                self._blocks[block] = scope
            assert {self._blocks[block] for block in row.block_table} == {scope}, "reads another tenant's tokens"


@dataclass
class World:
    """Steps by hand: 10 ms each."""

    blocks: int = 16
    host_slots: int = 8
    block_size: int = 4
    max_sequences: int = 4
    max_step_tokens: int = 16
    window: float = 4096.0
    prefix_share: float | None = None
    copies_ahead: int = 0
    looks_ahead: bool = True
    holds_decodes: bool = True
    lanes: Mapping[LaneName, Lane] = field(default_factory=lambda: DEFAULT_LANES)
    costs: CostModel = field(default_factory=CostModel)
    now_ms: float = 0.0
    outputs: dict[SeqId, list[int]] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    ahead: tuple[Row, ...] = ()
    """Rows of the next step as they were told during the last one."""

    def __post_init__(self) -> None:
        self.planner = Planner(
            lanes=self.lanes,
            block_size=self.block_size,
            blocks=self.blocks,
            host_slots=self.host_slots,
            max_sequences=self.max_sequences,
            max_step_tokens=self.max_step_tokens,
            costs=self.costs,
            window=self.window,
            prefix_share=self.prefix_share,
            copies_ahead=self.copies_ahead,
            holds_decodes=self.holds_decodes,
        )
        self.owners = Owners(self.block_size)
        self.runner = KvRunner(
            blocks=self.blocks,
            block_size=self.block_size,
            host_slots=self.host_slots,
            max_sequences=self.max_sequences,
            max_step_tokens=self.max_step_tokens,
        )

    def add(self, one: Job, *, generated: tuple[tuple[int, ...], ...] = (), arrived_ms_ago: float = 0.0) -> None:
        self.owners.jobs[one.job_id] = one
        lease = Lease(job=one, epoch=1, arrived_ms_ago=arrived_ms_ago, generated=generated)
        for choice in range(one.n):
            self.outputs[SeqId(one.job_id, choice)] = list(generated[choice]) if generated else []
        self.planner.add(lease, self.now_ms)

    def step(
        self, failing: Mapping[SeqId, str] | None = None, late: Set[SeqId] = frozenset()
    ) -> tuple[StepPlan, StepOutcome]:
        """`late`: rows whose result has not come yet."""
        self.now_ms += 10.0
        plan = self.planner.plan(self.now_ms)
        self.planner.check_integrity()
        self.owners.check(plan)
        self.ahead = self.planner.look_ahead() if self.looks_ahead else ()
        outcome = self.planner.apply(self.runner.run(plan, failing, late), self.now_ms)
        self.planner.check_integrity()
        self._record(plan, outcome)
        return plan, outcome

    def finish(self, limit: int = 1_000) -> int:
        """Step until nothing is left; how many steps that took."""
        for count in range(limit):
            if not self.planner.has_work:
                return count
            self.step()
        raise AssertionError(f"still at work after {limit} steps: {self.planner.job_ids()}")

    def rows(self) -> list[str]:
        """Jobs that had a row in the last step."""
        return [row.seq.job_id for row in self.plans[-1].rows]

    def events(self, kind: type[E]) -> list[E]:
        """All events of a kind so far."""
        return [event for plan in self.plans for event in plan.events if isinstance(event, kind)]

    def check_outputs(self, *jobs: Job) -> None:
        """Every choice of these jobs produced exactly what it had to."""
        for one in jobs:
            assert self.ended[one.job_id].outcome is Outcome.FINISHED
            for choice in range(one.n):
                assert self.outputs[SeqId(one.job_id, choice)] == expected_output(one, choice)

    def _record(self, plan: StepPlan, outcome: StepOutcome) -> None:
        self.plans.append(plan)
        yielded = {(event.job_id, event.choice) for event in plan.events if isinstance(event, Preempted)}
        assert not yielded & {tuple(row.seq) for row in plan.rows}, "preempted and run in one step"
        swapped = [(one.first // self.block_size, one.end) for one in plan.yields if one.mode == "swap"]
        left = sum(-(-end // self.block_size) - first for first, end in swapped)
        copied = sum(one.copied for one in plan.yields)
        assert copied <= left, "copies of nobody's KV"
        assert len(plan.swap_out) - copied == plan.ahead <= (0 if copied or plan.swap_in else self.copies_ahead)
        for one in outcome.produced:
            assert one.index == len(self.outputs[one.seq]), "a gap or a repetition"
            self.outputs[one.seq].append(one.token_id)
        for end in outcome.ended:
            assert end.job_id not in self.ended, "ended twice"
            self.ended[end.job_id] = end
