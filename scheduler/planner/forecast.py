"""Forecast of output lengths, learnt from ended outputs, and of whether the KV pools will hold started work.

The expected remainder of a sequence is a quantile of the outputs longer than its own. If sequences end one by one, KV
use peaks just before an end. Source: Past-Future scheduler (LightLLM, ASPLOS 2025)."""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable

from fairlane.scheduler.planner.kv.blocks import BlockPool
from fairlane.scheduler.planner.priority import Group, Phase, Ranked, Ranking
from fairlane.scheduler.planner.sequence import Sequence
from fairlane.scheduler.planner.step_builder import StepBuilder
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Job

REMEMBERED = 256
ENOUGH = 8
# Further tenants use their lane's mean.
MAX_MEANS = 10_000
# Quantile of the lengths still possible that is used as the forecast.
QUANTILE = 0.7


class History:
    """The last lengths, in order of arrival and of size."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, length: int) -> None:
        if len(self._recent) == REMEMBERED:
            del self._sorted[bisect_right(self._sorted, self._recent.popleft()) - 1]
        self._recent.append(length)
        insort(self._sorted, length)

    def remaining(self, produced: int) -> int | None:
        first = bisect_right(self._sorted, produced)
        longer = len(self._sorted) - first
        if longer < ENOUGH:
            return None
        return self._sorted[first + int(QUANTILE * (longer - 1))] - produced


# Lane, tenant and bit length of `max_tokens`; outputs with the same key are similar.
Key = tuple[LaneName] | tuple[LaneName, str] | tuple[LaneName, str, int]


class Lengths:
    """Output lengths by lane, tenant and size. After `most` histories, new tenants use those of their lane."""

    def __init__(self, most: int = 20_000) -> None:
        self._most = most
        self._histories: dict[Key, History] = {}

    def learn(self, job: Job, length: int) -> None:
        for key in _keys(job):
            if key in self._histories or len(key) == 1 or len(self._histories) < self._most:
                self._histories.setdefault(key, History()).add(length)

    def remaining(self, seq: Sequence) -> int:
        for key in _keys(seq.job):
            history = self._histories.get(key)
            expected = history.remaining(len(seq.output)) if history else None
            if expected is not None:
                return max(1, min(expected, seq.remaining))
        return max(1, seq.remaining)


def _keys(job: Job) -> tuple[Key, ...]:
    return (job.lane, job.tenant, job.max_tokens.bit_length()), (job.lane, job.tenant), (job.lane,)


class MeanLengths:
    """Mean output length by lane and tenant: produced tokens per ended output, so that running outputs count too. A
    mean over ended outputs only would be too short while most outputs are still running."""

    def __init__(self) -> None:
        self._known: dict[tuple[LaneName, str | None], tuple[float, float]] = {}

    def add(self, lane: LaneName, tenant: str, *, tokens: int = 0, ends: int = 0) -> None:
        fades = (1.0 - 1.0 / REMEMBERED) ** ends
        for key in ((lane, tenant), (lane, None)):
            is_known = key in self._known
            if is_known or len(self._known) < MAX_MEANS or key[1] is None:
                old_tokens, old_ends = self._known[key] if is_known else (0.0, 0.0)
                self._known[key] = fades * old_tokens + tokens, fades * (old_ends + ends)

    def mean(self, lane: LaneName, tenant: str) -> float | None:
        for key in ((lane, tenant), (lane, None)):
            if key in self._known:
                tokens, ends = self._known[key]
                if ends >= ENOUGH:
                    return tokens / ends
        return None


def peak_tokens(running: Iterable[tuple[int, int]]) -> int:
    """Return the peak KV tokens of sequences given as (remaining, held), the longest remaining first."""
    peak = held_so_far = 0
    for count, (remaining, held) in enumerate(running, 1):
        held_so_far += held
        peak = max(peak, held_so_far + count * remaining)
    return peak


# One started sequence: its remaining tokens, negated so that the longest sorts first; the tokens that only it holds, or
# that it needs to continue; and whether it is running and outgrows its table.
Outlook = tuple[int, int, bool]


class Forecast:
    """Tests whether both KV pools would hold all work at its peak if a sequence started too.

    Work that yields to it is ignored. Work that does not fit the device waits in the host pool: a copy costs less than
    half-empty batches. Counting only three quarters of the device would couple tenants to each other's output
    lengths."""

    def __init__(self, ranking: Ranking, builder: StepBuilder, pool: BlockPool, lengths: Lengths) -> None:
        self._ranking, self._index, self._begun = ranking, ranking.index, ranking.begun
        self._builder, self._pool, self._lengths = builder, pool, lengths
        # Started work of a level or above, the longest remaining first.
        self._known: dict[Group, list[Outlook]] = {}
        self._growing: dict[Group, int] = {}
        # Remaining and held tokens refused at a level; work with at least as much of both is refused too.
        self._refused: dict[Group, tuple[int, int]] = {}
        self._started: list[tuple[Group, Outlook]] = []
        self._as_of = -1

    def admits(self, ranked: Ranked) -> bool:
        most, size = ranked.seq.job.max_total_tokens + self._index.most_tokens, self._pool.block_size
        room = (self._pool.blocks + self._pool.host_slots) * size
        if most + size * (1 + len(self._index.begun)) <= room:
            return True
        level = ranked.rank.level
        running, one = self._running(level), self._outlook(ranked.seq)
        refused = self._refused.get(level)
        if refused is not None and -one[0] >= refused[0] and one[1] >= refused[1]:
            return False
        place = bisect_left(running, one)
        peak = peak_tokens((-left, held) for left, held, _ in (*running[:place], one, *running[place:]))
        if peak > room and (refused is None or (-one[0] <= refused[0] and one[1] <= refused[1])):
            self._refused[level] = -one[0], one[1]
        return peak <= room

    def growing(self, ranked: Ranked) -> int:
        self._running(ranked.rank.level)
        return self._growing[ranked.rank.level]

    def add(self, ranked: Ranked) -> None:
        if ranked.rank.phase is Phase.WAITING:
            started = ranked.rank.level, self._outlook(ranked.seq)
            self._started.append(started)
            for level, running in self._known.items():
                if started[0] <= level:
                    insort(running, started[1])
                    self._growing[level] += started[1][2]

    def _running(self, level: Group) -> list[Outlook]:
        if self._as_of != len(self._builder.yielded):
            self._known, self._refused, self._as_of = {}, {}, len(self._builder.yielded)
        if level not in self._known:
            kinds = self._begun.decodes.items()
            begun = [seq for kind, alike in kinds if self._ranking.group(kind) <= level for seq in alike]
            begun += [seq for seq in self._begun.others if self._ranking.stand(seq).rank.group <= level]
            known = [self._outlook(seq) for seq in begun]
            self._known[level] = known = sorted(known + [one for since, one in self._started if since <= level])
            self._growing[level] = sum([grows for _, _, grows in known])
        return self._known[level]

    def _outlook(self, seq: Sequence) -> Outlook:
        produced, room = len(seq.output), len(seq.table) * self._pool.block_size
        if seq.expected_output <= produced:
            seq.expected_output = produced + self._lengths.remaining(seq)
        job = seq.job
        grows = seq.is_resident and len(job.prompt) + job.max_tokens > room
        return produced - seq.expected_output, max(seq.length, room) - seq.borrowed * self._pool.block_size, grows
