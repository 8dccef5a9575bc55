"""How long outputs become, learnt from those that ended, and whether the KV pools will hold what is begun.

Of each lane and tenant the last outputs' lengths are kept, also by the size of `max_tokens`: who states one often knows
about how long the answer will be. What a sequence will still produce is a quantile of those that were longer than it
is now; with few of its own kind, of the tenant's or the lane's, with none all that it may produce. The peak follows
exactly from such remainders: with sequences ended one by one, the shortest remainder first, KV is fullest just before
an end. Source: Past-Future scheduler (LightLLM, ASPLOS 2025).
"""

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
"""Lengths kept in each history."""
ENOUGH = 8
"""Samples from which on they are relied on."""
QUANTILE = 0.7
"""Of the lengths still possible: the share that a prediction is not exceeded by."""


class History:
    """The last lengths, in order of arrival and of size."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, length: int) -> None:
        """An output ended at this length."""
        if len(self._recent) == REMEMBERED:
            del self._sorted[bisect_right(self._sorted, self._recent.popleft()) - 1]
        self._recent.append(length)
        insort(self._sorted, length)

    def remaining(self, produced: int) -> int | None:
        """Tokens that an output of this length is expected to gain; None where too few were longer."""
        first = bisect_right(self._sorted, produced)
        longer = len(self._sorted) - first
        if longer < ENOUGH:
            return None
        return self._sorted[first + int(QUANTILE * (longer - 1))] - produced


Key = tuple[LaneName] | tuple[LaneName, str] | tuple[LaneName, str, int]
"""Whose outputs are alike: lane, tenant, and the power of two that holds `max_tokens`."""


class Lengths:
    """Output lengths by lane, tenant and size. Beyond `most` histories, newcomers share those of their lane."""

    def __init__(self, most: int = 20_000) -> None:
        self._most = most
        self._histories: dict[Key, History] = {}

    def learn(self, job: Job, length: int) -> None:
        """An output of this job ended by itself, or at its limit."""
        for key in _keys(job):
            if key in self._histories or len(key) == 1 or len(self._histories) < self._most:
                self._histories.setdefault(key, History()).add(length)

    def remaining(self, seq: Sequence) -> int:
        """Output tokens that a sequence is expected to produce yet: at least one, at most what it may."""
        for key in _keys(seq.job):
            history = self._histories.get(key)
            expected = history.remaining(len(seq.output)) if history else None
            if expected is not None:
                return max(1, min(expected, seq.remaining))
        return max(1, seq.remaining)


def _keys(job: Job) -> tuple[Key, ...]:
    """The narrowest first."""
    return (job.lane, job.tenant, job.max_tokens.bit_length()), (job.lane, job.tenant), (job.lane,)


class MeanLengths:
    """Mean output by lane and tenant: tokens produced per end, so that what is still running counts too.

    The lengths of those that have ended alone are too short as long as most are young. A tenant with few ends has its
    lane's mean.
    """

    def __init__(self, most_tenants: int = 10_000) -> None:
        self._most = most_tenants
        self._known: dict[tuple[LaneName, str | None], tuple[float, float]] = {}
        """Tokens and ends, the old ones faded."""

    def produced(self, lane: LaneName, tenant: str, tokens: int) -> None:
        """Outputs that may go on gained so many tokens together."""
        self._add(lane, tenant, tokens, 0)

    def ended(self, lane: LaneName, tenant: str, outputs: int = 1) -> None:
        """So many outputs ended by themselves, or at their limit."""
        self._add(lane, tenant, 0, outputs)

    def mean(self, lane: LaneName, tenant: str) -> float | None:
        """Tokens of an output; None where too few have ended."""
        for key in ((lane, tenant), (lane, None)):
            tokens, ends = self._known.get(key, (0.0, 0.0))
            if ends >= ENOUGH:
                return tokens / ends
        return None

    def _add(self, lane: LaneName, tenant: str, tokens: int, ends: int) -> None:
        fades = (1.0 - 1.0 / REMEMBERED) ** ends
        for key in ((lane, tenant), (lane, None)):
            if key in self._known or len(self._known) < self._most or key[1] is None:
                old_tokens, old_ends = self._known.get(key, (0.0, 0.0))
                self._known[key] = fades * old_tokens + tokens, fades * (old_ends + ends)


def peak_tokens(running: Iterable[tuple[int, int]]) -> int:
    """The most KV tokens held at one time by sequences of (remaining, held) tokens, given the longest remaining first.

    Each gains a token a step and gives all back at its end.
    """
    peak = held_so_far = 0
    for count, (remaining, held) in enumerate(running, 1):
        held_so_far += held
        peak = max(peak, held_so_far + count * remaining)
    return peak


Outlook = tuple[int, int, bool]
"""Of what has begun: remaining tokens (negative: the longest sorts first), tokens it holds by itself or needs to go on,
whether it runs and outgrows its table."""


class Forecast:
    """Would both KV pools hold everything at its fullest, if this began too? Lower lanes do not count: they yield, and
    so do tenants outside the window to those inside, and best effort to what is guaranteed. What does not fit the
    device then waits in the host pool, which costs a copy: less than a batch that is half empty, and nothing of it
    is computed twice. Counting on only three quarters of the device's size there would halve the copies of a single
    tenant's batch, but tie tenants to each other's lengths: whoever runs longer could begin too little to keep up."""

    def __init__(self, ranking: Ranking, builder: StepBuilder, pool: BlockPool, lengths: Lengths) -> None:
        self._ranking, self._index, self._begun = ranking, ranking.index, ranking.begun
        self._builder, self._pool, self._lengths = builder, pool, lengths
        self._known: dict[Group, list[Outlook]] = {}
        """What stands at a level or above, the longest remaining first."""
        self._growing: dict[Group, int] = {}
        """How many of these will need another block."""
        self._refused: dict[Group, tuple[int, int]] = {}
        """Remaining and held tokens that were not admitted at a level: what has no less of either is not."""
        self._started: list[tuple[Group, Outlook]] = []
        """What began in this step."""
        self._as_of = -1

    def admits(self, ranked: Ranked) -> bool:
        """Nothing needs to yield later to what stands no higher."""
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
        """Sequences ranked no lower that run and will need another block."""
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
