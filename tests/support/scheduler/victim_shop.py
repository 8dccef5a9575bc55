"""A pool with sequences in it, to choose victims from; and what their tests ask of the choice."""

from dataclasses import dataclass, field

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.kv.blocks import BlockPool
from fairlane.scheduler.planner.kv.host_claims import HostClaims
from fairlane.scheduler.planner.preemption import Victim, VictimSearch
from fairlane.scheduler.planner.priority import PHASES, Phase, Rank, Ranked
from fairlane.scheduler.planner.sequence import Sequence, State
from fairlane.scheduler.planner.steps import NO_WORK, SeqId, StepFeatures
from fairlane.scheduler.protocol.messages import YieldMode
from tests.support.scheduler.planner_world import LATENCY, THROUGHPUT, job

BLOCK_SIZE = 4
LATENCY_RANK, THROUGHPUT_RANK = 0, 1


def swap_is_cheap() -> CostModel:
    costs = CostModel()
    for blocks in (1, 2, 4, 8) * 20:
        costs.observe(NO_WORK, 0.0, blocks, 0.001 * blocks)
    return costs


def recompute_is_cheap() -> CostModel:
    costs = CostModel()
    for tokens in (2, 20, 200, 400) * 40:
        costs.observe(StepFeatures(1, tokens, 0, 0), 10.0 + 1e-6 * tokens, 8, 50.0)
    return costs


def _phase(state: State) -> Phase:
    return Phase.WAITING if state is State.WAITING else PHASES[state]


@dataclass
class Shop:
    """A pool with sequences in it, to choose victims from."""

    host_slots: int = 100
    costs: CostModel = field(default_factory=swap_is_cheap)

    def __post_init__(self) -> None:
        self.pool = BlockPool(blocks=100, block_size=BLOCK_SIZE, host_slots=self.host_slots)
        self.claims = HostClaims(self.pool, {})
        self.standings: list[Ranked] = []

    def stand(
        self,
        name: str,
        lane_rank: int = THROUGHPUT_RANK,
        *,
        urgency: float = 1.0,
        blocks: int = 4,
        computed: int | None = None,
        state: State = State.DECODE,
        exact: bool = False,
    ) -> Ranked:
        lane = LATENCY if lane_rank == LATENCY_RANK else THROUGHPUT
        seq = Sequence(
            id=SeqId(name, 0),
            job=job(name, lane, prompt=computed or blocks * BLOCK_SIZE if exact else 400, max_tokens=1, exact=exact),
            epoch=1,
            arrived_ms=0.0,
            first_due_ms=1_000.0,
            promoted_ms=30_000.0,
            granted_until=8,
            state=state,
        )
        if seq.is_resident:
            seq.num_computed = blocks * BLOCK_SIZE if computed is None else computed
            self.pool.allocate(seq.table, blocks)
        if exact:
            self.claims.count(seq, may_stay=True)
        standing = Ranked(
            Rank(lane_rank, False, True, _phase(state), 0.0, 0.0, urgency, name, 0),
            seq,
        )
        self.standings.append(standing)
        return standing

    def choose(
        self, short: int, beneficiary: Ranked, *, leader: str = "", last_resort: bool = False
    ) -> list[Victim] | None:
        search = VictimSearch(self.pool, self.costs, self.claims, SeqId(leader, 0), last_resort=last_resort)
        return search.choose(short, beneficiary, self.standings)


def names(victims: list[Victim] | None) -> list[str]:
    assert victims is not None
    return [victim.seq.id.job_id for victim in victims]


def modes(victims: list[Victim] | None) -> list[YieldMode]:
    assert victims is not None
    return [victim.mode for victim in victims]


def given(victims: list[Victim] | None) -> dict[str, int]:
    assert victims is not None
    return {victim.seq.id.job_id: victim.blocks for victim in victims}
