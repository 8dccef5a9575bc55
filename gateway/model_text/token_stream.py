"""The text of a choice as its tokens arrive, up to a stop string."""

import codecs
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Protocol

from fairlane.common.redacted import Redacted
from fairlane.gateway.model_text.vocabulary import Vocabulary

_new_decoder = codecs.getincrementaldecoder("utf-8")


class SpellingModel(Protocol):
    """What a stream needs of a `TextModel`."""

    vocabulary: Vocabulary
    # With the names of the marks around calls and reasoning.
    vocabulary_with_marks: Vocabulary


class StopMatcher:
    """Emits text up to the first complete stop string, and holds back text that could begin one.

    If one character completes several, the longest wins, since it started first."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        # Where each stop string could begin in the held text. Each place is tried once, however the text is split.
        self._starts = [0] * len(self._stops)
        # The stop string that was completed, if any.
        self.stopped_by: str | None = None
        # The emitted text includes it.
        self.keeps_stop = False

    def feed(self, text: str) -> str:
        seen = self._held + text
        candidates = list(zip(self._stops, self._starts, strict=True))
        found = [(at + len(stop), at, stop) for stop, start in candidates if (at := seen.find(stop, start)) >= 0]
        if found:
            past, end, self.stopped_by = min(found)
            self._held = ""
            return seen[: past if self.keeps_stop else end]
        starts = [_possible_start(stop, seen, start) for stop, start in candidates]
        free = min(starts, default=len(seen))
        self._starts = [start - free for start in starts]
        self._held = seen[free:]
        return seen[:free]

    def release(self) -> str:
        held, self._held = self._held, ""
        return held


def _possible_start(stop: str, text: str, start: int) -> int:
    at = text.find(stop[0], max(start, len(text) - len(stop) + 1))
    while at >= 0 and not stop.startswith(text[at:]):
        at = text.find(stop[0], at + 1)
    return len(text) if at < 0 else at


class TextPiece(Redacted, frozen=True):
    """The result of a push."""

    text: str
    # Charged tokens of the choice so far: all of them, or those up to the one that completed a stop string.
    counted: int
    # A stop string was completed; no text follows.
    stopped: bool
    # Where the text of each token but the last ends, if requested.
    cuts: tuple[int, ...] = ()


class TokenStream:
    """The text of ONE choice as its tokens arrive. The result does not depend on how they are split into pushes.

    It never emits an incomplete character, a stop string, or text that could begin one. A character that the end of the
    stream cuts in half is dropped."""

    def __init__(
        self,
        model: SpellingModel,
        stop: Sequence[str] = (),
        *,
        min_tokens: int = 0,
        control_text: bool = False,
        by_token: bool = False,
    ) -> None:
        """`min_tokens`: stop strings only match text after that many tokens. `control_text`: show the special tokens
        that mark calls and reasoning by name, for an output reader. `by_token`: return where each token's text ends."""
        self._by_token = by_token
        self._vocabulary = model.vocabulary_with_marks if control_text else model.vocabulary
        # Created with the first character that is not ASCII.
        self._utf8: codecs.IncrementalDecoder | None = None
        self._stops = StopMatcher(stop) if stop else None
        self._min_tokens = min_tokens
        self._counted = 0
        self._begun = False
        # The first bytes of a character wait for the rest.
        self._is_partial = False

    @property
    def stopped_by(self) -> str | None:
        return None if self._stops is None else self._stops.stopped_by

    def show(self, *, special: bool, ends: Collection[int], keeps_stops: bool) -> None:
        """Set what the text has of special tokens, stop strings and the tokens that end the choice."""
        self._vocabulary = self._vocabulary.showing(None if special else (), hidden=() if keeps_stops else ends)
        if self._stops is not None:
            self._stops.keeps_stop = keeps_stops

    def push(self, token_ids: Sequence[int]) -> TextPiece:
        stops = self._stops
        if stops is None and not (self._by_token and len(token_ids) > 1):
            self._counted += len(token_ids)
            return TextPiece(self._text_of(token_ids), self._counted, False)
        shown = []
        for token_id in token_ids:
            if self.stopped_by is not None:
                break
            self._counted += 1
            text = self._text_of((token_id,))
            shown.append(text if stops is None or self._counted <= self._min_tokens else stops.feed(text))
        cuts = tuple(accumulate(map(len, shown[:-1]))) if self._by_token else ()
        return TextPiece("".join(shown), self._counted, self.stopped_by is not None, cuts)

    def flush(self) -> TextPiece:
        stops = self._stops
        return TextPiece("" if stops is None else stops.release(), self._counted, self.stopped_by is not None)

    def _text_of(self, token_ids: Sequence[int]) -> str:
        spelled = self._vocabulary.spell(token_ids, first=not self._begun)
        if spelled is None:
            return ""
        self._begun = True
        if spelled.isascii() and not self._is_partial:
            return spelled.decode("ascii")
        self._utf8 = self._utf8 or _new_decoder("replace")
        text = self._utf8.decode(spelled)
        self._is_partial = bool(self._utf8.getstate()[0])
        return text


class DiscardedTokens(TokenStream):
    """The output of a choice that requests none: its worker generates a placeholder, which is neither shown nor
    charged."""

    def push(self, token_ids: Sequence[int]) -> TextPiece:
        return TextPiece("", 0, True)
