"""Finding marks in streamed text."""

import re
from collections.abc import Sequence


class Marks:
    """Finds the first of several marks in streamed text."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._pattern = re.compile("|".join(map(re.escape, marks)) or r"(?!)")
        self._beginnings = {mark[:length] for mark in marks for length in range(1, len(mark))}
        self._longest = max(map(len, self._beginnings), default=0)
        self._firsts = {mark[0] for mark in marks}

    def find(self, text: str, at: int, *, ended: bool) -> tuple[int, int, str | None]:
        found = self._pattern.search(text, at)
        if found is not None:
            return found.start(), found.end(), found[0]
        first = max(at, len(text) - self._longest)
        for begin in range(first, len(text)) if not ended else ():
            if text[begin] in self._firsts and text[begin:] in self._beginnings:
                return begin, begin, None
        return len(text), len(text), None
