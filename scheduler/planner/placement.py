"""Selects the sequences of a step in one walk down the order; every sequence left out gets a reason.

The first sequence that lacks blocks is the head. Later work may start only if it ends before running work can have made
room for the head (EASY backfill), and only with blocks for its whole prompt, so that prefills cannot deadlock."""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain, islice, takewhile

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.forecast import Forecast, Lengths
from fairlane.scheduler.planner.kv.blocks import BlockPool
from fairlane.scheduler.planner.kv.host_claims import HostClaims
from fairlane.scheduler.planner.kv.lane_floors import BlockFloors, needed_blocks
from fairlane.scheduler.planner.lane_index import WAITING_PER_TENANT, LaneIndex
from fairlane.scheduler.planner.preemption import Victim, VictimSearch, lost
from fairlane.scheduler.planner.priority import IDLE, Phase, Ranked, Ranking
from fairlane.scheduler.planner.sequence import Sequence, State
from fairlane.scheduler.planner.step_builder import StepBuilder
from fairlane.scheduler.planner.steps import SeqId, WaitReason
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Cause, ScarceResource

# Waiting requests of a tenant that a step examines after one that found no blocks.
BACKFILL = 4

# The resource for which a decode lost its row; for any other reason, the row itself.
_SCARCE: Mapping[WaitReason, ScarceResource] = {
    WaitReason.BLOCKS: "blocks",
    WaitReason.TOKENS: "tokens",
    WaitReason.PACE: "pace",
}


class WaitingWork:
    """Waiting work in the order of a walk: a few sequences per tenant, and the next one once one is placed or lacks
    blocks."""

    def __init__(self, ranking: Ranking) -> None:
        self._ranking, self._index = ranking, ranking.index
        self._refused: Counter[tuple[LaneName, str]] = Counter()
        self._next: dict[tuple[LaneName, str], Iterator[Sequence]] = {}
        self._shown: set[LaneName] = set()
        self._viewed: set[tuple[LaneName, str]] = set()
        self._seen: set[SeqId] = set()
        # Weighted tokens of a tenant's sequences that were returned. Later ones are ranked as if these were charged,
        # like start tags in fair queueing. Otherwise one tenant could get a whole step, and the next tenant the
        # following one.
        self._ahead: defaultdict[tuple[LaneName, str], float] = defaultdict(float)

    def heads(self, name: LaneName) -> list[Ranked]:
        lane, now_ms = self._index.lanes[name], self._ranking.now_ms
        tenants = lane.least_served()
        first = [*lane.promoted(now_ms), *lane.guaranteed()]
        each = max(1, WAITING_PER_TENANT // max(1, len(tenants)))
        for tenant in tenants if name not in self._shown else ():
            self._viewed.add((name, tenant))
            first += islice(lane.next_up(tenant, now_ms), each) if each > 1 else (lane.next_of(tenant, now_ms),)
        self._shown.add(name)
        return self._unseen(first)

    def behind(self, seq: Sequence, reason: WaitReason | None) -> list[Ranked]:
        place = seq.job.lane, seq.job.tenant
        if reason is not None:
            self._refused[place] += 1
            if reason not in (WaitReason.BLOCKS, WaitReason.HEAD) or self._refused[place] > BACKFILL:
                return []
        if place not in self._viewed:
            return []
        if place not in self._next:
            waiting, seen = self._index.lanes[place[0]].next_up(place[1], self._ranking.now_ms), self._seen
            self._next[place] = (one for one in waiting if one.id not in seen)
        return self._unseen(islice(self._next[place], 1))

    def _unseen(self, sequences: Iterable[Sequence]) -> list[Ranked]:
        found, seen, all_ahead, stand = [], self._seen, self._ahead, self._ranking.stand
        for seq in sequences:
            if seq.id not in seen:
                seen.add(seq.id)
                job = seq.job
                place = job.lane, job.tenant
                ahead = all_ahead[place]
                found.append(stand(seq, ahead))
                all_ahead[place] = ahead + seq.length / job.weight
        return found


class Placement:
    """One step's walk down the order."""

    def __init__(
        self,
        ranking: Ranking,
        builder: StepBuilder,
        pool: BlockPool,
        costs: CostModel,
        lengths: Lengths,
        claims: HostClaims,
    ) -> None:
        self._ranking, self._index, self._begun = ranking, ranking.index, ranking.begun
        self._builder, self._pool, self._costs, self._claims = builder, pool, costs, claims
        self._last_resort = False
        # Steps after which running work has made room for the head; None without a head.
        self._head_starts: float | None = None
        self._reasons: dict[SeqId, WaitReason] = {}
        self._passed_over: list[Sequence] = []
        self._forecast = Forecast(ranking, builder, pool, lengths)
        self._floors = BlockFloors(ranking, pool)
        # Decodes of tenants that yield to one request per step, by lane rank.
        self._yielding: Counter[int] = Counter()
        self._placed: Sequence | None = None
        # A sequence has taken rows or blocks from others of its lane in this step.
        self._has_yielded = False
        # Per kind of waiting work: the number of placed sequences, and a reason for refusal that does not depend on
        # free blocks. Until another sequence is placed, all work of that kind is refused for this reason.
        self._refused: dict[Hashable, tuple[int, WaitReason]] = {}
        # Per kind, the fewest blocks that could not be gathered. Available blocks only decrease during a walk.
        self._lacked: dict[Hashable, int] = {}

    def fill(self) -> dict[SeqId, WaitReason]:
        self._fill_floors()
        reasons = self._walk()
        if not self._builder.running and not {WaitReason.BLOCKS, WaitReason.HOST}.isdisjoint(reasons.values()):
            self._last_resort = True
            reasons = self._walk()
        for seq in self._passed_over:
            if seq.stalled_since_ms is None and seq.is_resident and seq.id in reasons:
                self._builder.set_aside(seq, self._who_has_its_row(reasons[seq.id]))
        return reasons

    def _fill_floors(self) -> None:
        short = self._floors.short
        if short > 0:
            holders = filter(self._floors.gives, self._holders)
            for victim in self._victims().give_back(short, holders):
                self._builder.preempt(victim, Cause(resource="blocks", lane=self._floors.shortest))

    def _walk(self) -> dict[SeqId, WaitReason]:
        self._head_starts, self._reasons, self._passed_over = None, {}, []
        self._refused, self._lacked = {}, {}
        not_begun = WaitingWork(self._ranking)
        waiting = [self._ranking.stand(seq) for seq in self._begun.others]
        heapq.heapify(waiting)
        lanes = {name: lane for name, lane in self._index.lanes.items() if lane.waits}
        groups, self._yielding = self._ranking.groups()
        for group, decodes in sorted(groups.items()):
            for name, lane in lanes.items():
                if self._ranking.first_group(lane) < group:
                    self._show(waiting, not_begun, name)
            while waiting and waiting[0].rank.group < group:
                self._consider(heapq.heappop(waiting), waiting, not_begun)
            self._run(decodes)
        for name in lanes:
            self._show(waiting, not_begun, name)
        while waiting and not self._builder.is_full:
            self._consider(heapq.heappop(waiting), waiting, not_begun)
        self._reasons.update((one.seq.id, WaitReason.SLOTS) for one in waiting)
        return self._reasons

    def _show(self, waiting: list[Ranked], not_begun: WaitingWork, name: LaneName) -> None:
        """Add a lane's waiting work to the walk, unless all of it would be refused for lack of rows: one sequence has
        yielded, no guaranteed work waits, and all rows left yield to one request per step."""
        lane, rows = self._index.lanes[name], self._builder.rows_left(name)
        if rows <= 0 or (self._has_yielded and self._all_would_take_rows(lane, rows)):
            return
        for ranked in not_begun.heads(name):
            heapq.heappush(waiting, ranked)

    def _all_would_take_rows(self, lane: LaneIndex, rows: int) -> bool:
        rank = lane.lane.rank
        return rows <= min(self._yielding[rank], self._yielding[max(0, rank - 1)]) and not lane.guaranteed()

    def _run(self, lanes: dict[LaneName, list[Sequence]]) -> None:
        """Give a group's decodes their rows at once: all of them if they fit, or the first ones if only rows are
        scarce.

        Otherwise place them one by one."""
        decodes = [*chain.from_iterable(lanes.values())]
        if self._builder.yielded:
            decodes = [seq for seq in decodes if seq.id not in self._builder.yielded]
        if len(lanes) == 1:
            lane = next(iter(lanes))
            rows = max(0, self._builder.rows_left(lane))
            first = decodes if len(decodes) <= rows else self._ranking.first_decodes(decodes, rows)
            if self._builder.run_decodes(lane, first, self._floors.kept_from_decodes(first)):
                self._floors.ran(first)
                if len(first) < len(decodes):
                    waiting = [seq for seq in decodes if seq.id not in self._builder.running]
                    self._passed_over += waiting
                    self._reasons.update((seq.id, WaitReason.SLOTS) for seq in waiting)
                return
        self._passed_over += decodes
        for ranked in sorted(map(self._ranking.stand, decodes)):
            self._refuse(ranked.seq, self._place(ranked))

    def _consider(self, ranked: Ranked, waiting: list[Ranked], not_begun: WaitingWork) -> None:
        seq, rank = ranked.seq, ranked.rank
        if rank.phase is not Phase.WAITING:
            self._refuse(seq, self._place(ranked))
            return
        kind = seq.job.lane, rank.group, len(seq.job.prompt) > 1
        placed = len(self._builder.running)
        known = self._refused.get(kind)
        if known is not None and known[0] == placed:
            self._reasons[seq.id] = known[1]
            return
        reason = self._place(ranked)
        if reason is WaitReason.SLOTS or reason is WaitReason.TOKENS:
            self._refused[kind] = placed, reason
        self._refuse(seq, reason)
        for behind in not_begun.behind(seq, reason):
            heapq.heappush(waiting, behind)

    def _refuse(self, seq: Sequence, reason: WaitReason | None) -> None:
        if reason is not None:
            self._reasons[seq.id] = reason

    def _place(self, ranked: Ranked) -> WaitReason | None:
        reason, held = self._barred(ranked.seq), len(ranked.seq.table)
        if reason is None and self._has_yielded and self._takes_row(ranked):
            reason = WaitReason.SLOTS
        if reason is None and self._lacks_more_than_was_shared(ranked):
            reason = WaitReason.BLOCKS
        dropped = None if reason else self._count_on_host(ranked)
        victims = None
        if dropped is not None:
            self._builder.prefixes.reuse(ranked.seq)
            victims = self._make_room(ranked)
        if dropped is None or victims is None:
            reason = reason or (WaitReason.HOST if dropped is None else WaitReason.BLOCKS)
            if self._head_starts is None and reason in (WaitReason.BLOCKS, WaitReason.PREEMPTED):
                self._head_starts = self._steps_until(needed_blocks(ranked.seq, self._pool))
            self._builder.prefixes.give_back(ranked.seq, held)
            if ranked.seq.state is State.WAITING:
                self._claims.release(ranked.seq)
            return reason
        if victims or dropped:
            cause = _for(ranked.seq, "blocks")
            for victim in (*victims, *(lost(seq, self._pool, self._costs) for seq in dropped)):
                self._builder.preempt(victim, cause)
            if dropped:
                self._lacked.clear()  # the host now has more room
        lane = ranked.seq.job.lane
        takes_blocks = not ranked.seq.is_resident and any(victim.seq.job.lane is lane for victim in victims)
        self._has_yielded |= self._takes_row(ranked) or takes_blocks
        self._builder.run(ranked.seq)
        self._placed = ranked.seq
        self._floors.ran([ranked.seq])
        self._forecast.add(ranked)
        return None

    def _who_has_its_row(self, reason: WaitReason) -> Cause | None:
        taker = self._placed or next(reversed(self._builder.running.values()), None)
        return None if taker is None else _for(taker, _SCARCE.get(reason, "slots"))

    def _count_on_host(self, ranked: Ranked) -> list[Sequence] | None:
        """Reserve host room before exact work starts. Return the sequences to drop from the host for it, or None if it
        would have to be recomputed after a preemption. A tenant's first sequence may stay on the device instead."""
        seq = ranked.seq
        if self._claims.covers(seq):
            return []
        may_stay = self._is_newcomer(seq)
        below = (one.seq for one in takewhile(lambda one: one.rank > ranked.rank, self._away) if one.seq.slots)
        return self._claims.count(seq, below, may_stay=may_stay, alone=self._last_resort)

    @cached_property
    def _away(self) -> list[Ranked]:
        begun = chain(self._index.others.values(), self._index.paused.values())
        return sorted([self._ranking.stand(seq) for seq in begun if seq.slots], reverse=True)

    def _barred(self, seq: Sequence) -> WaitReason | None:
        if seq.id in self._builder.yielded:
            return WaitReason.PREEMPTED
        if self._builder.rows_left(seq.job.lane) <= 0:
            return WaitReason.SLOTS
        if self._builder.tokens_left(seq) <= 0:
            return WaitReason.TOKENS
        if self._builder.is_late(seq):
            return WaitReason.PACE
        stays = seq.is_resident or (self._last_resort and not seq.is_new) or self._is_newcomer(seq)
        if self._head_starts is None or stays or self._builder.steps_left(seq) <= self._head_starts:
            return None
        return None if self._floors.is_own(seq) else WaitReason.HEAD

    def _is_newcomer(self, seq: Sequence) -> bool:
        return seq.job.tenant not in self._index.lanes[seq.job.lane].begun

    def _lacks_more_than_was_shared(self, ranked: Ranked) -> bool:
        """Return whether, after the head, blocks would be short even with as many shared ones as at the last cache
        lookup. Looking up many long prompts in each step would cost more than the step."""
        shared = ranked.seq.shared_when_asked
        if self._head_starts is None or shared is None:
            return False
        return self._choose(self._short(ranked.seq) - shared, ranked) is None

    def _make_room(self, ranked: Ranked) -> list[Victim] | None:
        seq, short = ranked.seq, self._short(ranked.seq)
        crowds = not (seq.is_resident or self._last_resort) and short > -len(self._index.begun)
        if crowds and self._choose(short + self._forecast.growing(ranked), ranked) is None:
            crowds_out = True  # running work would lack room for its next tokens
        else:  # or would displace running work later
            crowds_out = seq.is_new and not self._forecast.admits(ranked)
        return None if crowds_out and not self._floors.is_own(seq) else self._choose(short, ranked)

    def _choose(self, short: int, ranked: Ranked) -> list[Victim] | None:
        if short <= 0:
            return []
        seq, rank = ranked.seq, ranked.rank
        if self._last_resort:
            return self._gather(short, ranked)
        kind = seq.job.lane, rank.group, rank.phase, seq.is_resident, self._floors.binds_all(seq)
        if short >= self._lacked.get(kind, math.inf):
            return None
        victims = self._gather(short, ranked)
        if victims is None:
            self._lacked[kind] = short
        return victims

    def _gather(self, short: int, ranked: Ranked) -> list[Victim] | None:
        return self._victims().choose(short, ranked, [one for one in self._holders if self._may_ask(ranked, one)])

    def _victims(self) -> VictimSearch:
        return VictimSearch(self._pool, self._costs, self._claims, self._leader, last_resort=self._last_resort)

    def _may_ask(self, ranked: Ranked, holder: Ranked) -> bool:
        if holder.seq.id in self._builder.running:
            return False
        if self._last_resort:
            return True
        if self._has_yielded and self._yields_once(holder, ranked):
            return False
        return not self._floors.keeps(holder.seq, ranked.seq)

    def _takes_row(self, ranked: Ranked) -> bool:
        rank = ranked.rank
        if rank.phase is not Phase.WAITING or rank.outside_window or rank.service_class == 0:
            return False
        return self._builder.rows_left(ranked.seq.job.lane) <= self._yielding[rank.lane]

    def _yields_once(self, holder: Ranked, ranked: Ranked) -> bool:
        if ranked.seq.is_resident or ranked.rank.service_class == 0 or ranked.rank.lane != holder.rank.lane:
            return False
        job = holder.seq.job
        return holder.rank.outside_window and not self._ranking.is_far_ahead(job.lane, job.tenant)

    def _short(self, seq: Sequence) -> int:
        needed = needed_blocks(seq, self._pool)
        kept = 0 if self._last_resort else self._floors.kept_from(seq, needed)
        return needed + kept - self._pool.free_blocks

    def _steps_until(self, needed: int) -> float:
        room, begun = self._pool.free_blocks, [seq for seq in self._index.begun.values() if seq.is_resident]
        for steps, held in sorted((self._builder.steps_left(seq), len(seq.table)) for seq in begun):
            room += held
            if room >= needed:
                return steps
        return math.inf

    @cached_property
    def _holders(self) -> list[Ranked]:
        begun = chain(self._index.begun.values(), self._index.paused.values())
        return [self._ranking.stand(seq) for seq in begun if seq.table]

    @cached_property
    def _leader(self) -> SeqId | None:
        runs = [one for one in self._holders if one.rank.lane < IDLE]
        return min(runs).seq.id if runs else None


def _for(seq: Sequence, resource: ScarceResource) -> Cause:
    job = seq.job
    return Cause(resource=resource, lane=job.lane, tenant=job.tenant, job_id=job.job_id)
