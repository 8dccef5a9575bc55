"""Would the KV pools still hold everything at its fullest, if one more sequence began? Asked before anything starts."""

from bisect import bisect_left, insort

from scheduler.blocks import BlockPool
from scheduler.budget import Survey
from scheduler.draft import Draft
from scheduler.lengths import Lengths, peak_tokens
from scheduler.ranking import Group, Phase, Ranking, Standing
from scheduler.roster import Roster
from scheduler.sequence import Sequence

Outlook = tuple[int, int, bool]
"""Of what has begun: remaining tokens (negative: the longest sorts first), tokens it holds by itself or needs to go on,
whether it runs and outgrows its table."""


class Forecast:
    """Would both KV pools hold everything at its fullest, if this began too? Lower lanes do not count: they yield, and
    so do tenants outside the window to those inside, and best effort to what is guaranteed. What does not fit the
    device then waits in the host pool, which costs a copy: less than a batch that is half empty, and nothing of it
    is computed twice. Counting on only three quarters of the device's size there would halve the copies of a single
    tenant's batch, but tie tenants to each other's lengths: whoever runs longer could begin too little to keep up."""

    def __init__(
        self, roster: Roster, begun: Survey, ranking: Ranking, draft: Draft, pool: BlockPool, lengths: Lengths
    ) -> None:
        self._roster = roster
        self._begun = begun
        self._ranking = ranking
        self._draft = draft
        self._pool = pool
        self._lengths = lengths
        self._known: dict[Group, list[Outlook]] = {}
        """What stands at a level or above, the longest remaining first."""
        self._started: list[tuple[Group, Outlook]] = []
        """What began in this step."""
        self._as_of = -1

    def admits(self, standing: Standing) -> bool:
        """Nothing needs to yield later to what stands no higher."""
        most, size = standing.seq.job.max_total_tokens + self._roster.most_tokens, self._pool.block_size
        room = (self._pool.blocks + self._pool.host_slots) * size
        if most + size * (1 + len(self._roster.begun)) <= room:
            return True
        running = self._running(standing.rank.level)
        one = self._outlook(standing.seq)
        place = bisect_left(running, one)
        peak = peak_tokens((-left, held) for left, held, _ in (*running[:place], one, *running[place:]))
        return peak <= room

    def growing(self, standing: Standing) -> int:
        """Sequences standing no lower that run and will need another block."""
        return sum(grows for _, _, grows in self._running(standing.rank.level))

    def add(self, standing: Standing) -> None:
        """It runs."""
        if standing.rank.phase is Phase.FRESH:
            started = standing.rank.level, self._outlook(standing.seq)
            self._started.append(started)
            for level, running in self._known.items():
                if started[0] <= level:
                    insort(running, started[1])

    def _running(self, level: Group) -> list[Outlook]:
        if self._as_of != len(self._draft.yielded):
            self._known, self._as_of = {}, len(self._draft.yielded)
        if level not in self._known:
            kinds = self._begun.decodes.items()
            begun = [seq for kind, alike in kinds if self._ranking.group(kind) <= level for seq in alike]
            begun += [seq for seq in self._begun.others if self._ranking.stand(seq).rank.group <= level]
            known = [self._outlook(seq) for seq in begun]
            self._known[level] = sorted(known + [one for since, one in self._started if since <= level])
        return self._known[level]

    def _outlook(self, seq: Sequence) -> Outlook:
        produced, room = len(seq.output), len(seq.table) * self._pool.block_size
        if seq.expected_output <= produced:
            seq.expected_output = produced + self._lengths.remaining(seq)
        job = seq.job
        grows = seq.is_resident and len(job.prompt) + job.max_tokens > room
        return produced - seq.expected_output, max(seq.length, room) - seq.borrowed * self._pool.block_size, grows
