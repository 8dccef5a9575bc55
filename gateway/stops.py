"""Stop strings in a text that arrives piece by piece (Knuth, Morris, Pratt: constant work per character)."""

from collections.abc import Sequence


class StopMatcher:
    """Lets text through up to the first stop string to be completed, and holds back what could begin one.

    Where several are completed by the same character, the longest counts: it began first.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._matched = [0] * len(self._stops)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """The text that is now known to belong to no stop string."""
        if not self._stops:
            return text
        for position, character in enumerate(text):
            completed = self._advance(character)
            if completed:
                self.stopped = True
                seen, self._held = self._held + text[: position + 1], ""
                return seen[: len(seen) - completed]
        seen = self._held + text
        free = len(seen) - max(self._matched)
        self._held = seen[free:]
        return seen[:free]

    def release(self) -> str:
        """What was held back, once it is known that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> int:
        """Take one character in; the length of the longest stop string that it completes, or 0."""
        completed = 0
        for index, (stop, borders) in enumerate(self._stops):
            matched = self._matched[index]
            while matched and stop[matched] != character:
                matched = borders[matched - 1]
            matched += stop[matched] == character
            if matched == len(stop):
                completed = max(completed, matched)
            else:
                self._matched[index] = matched
        return completed


def _borders(stop: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = borders[length - 1]
        length += stop[index] == stop[length]
        borders[index] = length
    return borders
