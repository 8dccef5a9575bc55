"""Finds how the output of a grammar can be closed in few tokens, so that it ends before its length limit."""

import time
from collections.abc import Iterable
from itertools import product
from string import printable

from llguidance import LLMatcher, LLTokenizer

# Digits first, since a number is a short value. Quotation marks open texts, and blanks add nothing.
_PREFERRED = sorted(printable, key=lambda char: (char.isspace(), char == '"', not char.isdigit(), char))
# What may follow a whole value or a name.
_AFTER_TEXT = frozenset(",:}] \t\r\n")
# No structure of JSON contains this letter, so only texts do.
_LETTER = "x"
# Output tokens before its limit within which a choice must be able to close its output.
CLOSING_TOKENS = 128
# In one token.
MOST_BRACKETS = 4
# After a search for a closing failed.
_RETRY_AFTER = 8
# CPU time of one search, which the engine waits for. A typical one takes a millisecond.
_SEARCH_S = 0.02


class Closer:
    """Finds closings in one vocabulary. It always takes the same one from the same state of a grammar."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokens_of = tokenizer.greedy_tokenize
        brackets = ["".join(some) for count in range(MOST_BRACKETS, -1, -1) for some in product("}]", repeat=count)]
        self._brackets = [token for token in map(self._token, brackets) if token is not None]
        self._quotes = [token for some in brackets if (token := self._token('"' + some)) is not None]
        self._preferred = {char: token for char in _PREFERRED if (token := self._token(char)) is not None}

    def _token(self, text: str) -> int | None:
        """Return the single token of a text, if there is one."""
        tokens = self._tokens_of(text)
        return tokens[0] if len(tokens) == 1 else None

    def path(self, start: LLMatcher, most: int) -> list[int] | None:
        """Return tokens after which the output may end; None if `most` of them do not suffice."""
        matcher, found = start.deep_copy(), list[int]()
        end_s = time.thread_time() + _SEARCH_S
        while not matcher.is_accepting():
            token = self._next(matcher) if len(found) < most and time.thread_time() < end_s else None
            if token is None or not matcher.consume_token(token):
                return None
            found.append(token)
        return found

    def _next(self, matcher: LLMatcher) -> int | None:
        forced = self._tokens_of(matcher.compute_ff_bytes().decode(errors="ignore"))
        if forced and matcher.validate_tokens(forced[:1]):
            return forced[0]
        bits = matcher.compute_bitmask()
        quote, bracket = _first(bits, self._quotes), _first(bits, self._brackets)
        if quote is not None and self._ends_text(matcher):
            return quote
        if not self._allows(bits, _LETTER):
            if bracket is not None:
                return bracket
            if self._allows(bits, ","):
                return self._preferred[","]
        preferred = _first(bits, self._preferred.values())
        if preferred is not None:
            return preferred
        return next((8 * index + (byte & -byte).bit_length() - 1 for index, byte in enumerate(bits) if byte), None)

    def _ends_text(self, matcher: LLMatcher) -> bool:
        """Return whether a quotation mark would end a text, instead of opening one."""
        after = matcher.deep_copy()
        if not after.try_consume_tokens(self._tokens_of('"')):
            return False
        bits = after.compute_bitmask()
        return all(char in _AFTER_TEXT for char in self._preferred if self._allows(bits, char))

    def _allows(self, bits: bytes, char: str) -> bool:
        return char in self._preferred and _allows(bits, self._preferred[char])


def _allows(bits: bytes, token: int) -> bool:
    return bool(bits[token // 8] >> token % 8 & 1)


def _first(bits: bytes, tokens: Iterable[int]) -> int | None:
    return next((token for token in tokens if _allows(bits, token)), None)


class Closing:
    """Keeps room for the end of one choice's output."""

    def __init__(self, closer: Closer, end: int) -> None:
        self._closer = closer
        self._end = end
        # Tokens that close the output as it is; None if they are not known.
        self._path: list[int] | None = None
        self._retry_at = CLOSING_TOKENS

    def replacement(self, token_id: int, matcher: LLMatcher, left: int) -> int | None:
        """Return the token to take instead of a drawn one if the output could not be closed after it; else None.

        `left`: tokens that may follow it, including the end of sequence."""
        if left >= self._retry_at and self._path is None:
            return None
        after = matcher.deep_copy()
        if not after.try_consume_tokens([token_id]):  # an end of sequence
            return None
        path = self._known_path(token_id, after, left) or self._closer.path(after, left - 1)
        if path is not None:
            self._path = path
            return None
        self._path = self._closer.path(matcher, left)
        if self._path is None:
            self._retry_at = left - _RETRY_AFTER
            return None
        return self._path[0] if self._path else self._end

    def _known_path(self, token_id: int, after: LLMatcher, left: int) -> list[int] | None:
        if not self._path:
            return None
        known = self._path[1:] if token_id == self._path[0] else self._path
        closed = after.deep_copy()
        closes = len(known) < left and closed.try_consume_tokens(known) == len(known) and closed.is_accepting()
        return known if closes else None
