"""Which flights the store believes to be in this worker's hands, and what was said of flights that are not yet."""

from collections import deque
from collections.abc import Iterable

from scheduler.messages import Cancel, Grant, Lease

MOST_EARLY = 1_000
"""Words kept; one is early only while a `take` is under way."""


class Holdings:
    """Kept by the event loop: a flight is held from its `take` until the store has heard that it left.

    The control stream may overtake the answer of a `take`, also of a flight that is held already, under an epoch that
    is over: words are kept until a take has come to its end, and go to the engine behind the leases that it brought.
    """

    def __init__(self) -> None:
        self._epochs: dict[str, int] = {}
        self._early: deque[Cancel | Grant] = deque(maxlen=MOST_EARLY)

    def __len__(self) -> int:
        return len(self._epochs)

    def ids(self) -> list[str]:
        """Every flight held."""
        return list(self._epochs)

    def took(self, leases: Iterable[Lease]) -> list[Cancel | Grant]:
        """A take has ended with these; the early words that may be about them."""
        epochs = {lease.job.flight_id: lease.epoch for lease in leases}
        self._epochs.update(epochs)
        early = [word for word in self._early if word.flight_id in epochs]
        self._early.clear()
        return early

    def known(self, leases: Iterable[Lease]) -> list[Lease]:
        """Those of flights that are held under an epoch as new as theirs."""
        return [lease for lease in leases if self._epochs.get(lease.job.flight_id, -1) >= lease.epoch]

    def hears(self, word: Cancel | Grant) -> bool:
        """Is this about a flight held? It is kept in any case: saying it twice does nothing."""
        self._early.append(word)
        return word.flight_id in self._epochs

    def epochs(self, flight_ids: Iterable[str]) -> list[tuple[str, int]]:
        """These flights with the epoch under which each is held; without those that are not."""
        return [(flight_id, self._epochs[flight_id]) for flight_id in flight_ids if flight_id in self._epochs]

    def let_go(self, flight_id: str, epoch: int) -> None:
        """The store has heard that a flight left; one that has come again under another epoch stays."""
        if self._epochs.get(flight_id) == epoch:
            del self._epochs[flight_id]
