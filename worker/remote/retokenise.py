"""The text of a server that says no token ids, as tokens of the model's own tokenizer; and prompts as text for one that
takes none.

What is charged and resumed from are these tokens. They spell the text that came; the server may have drawn others that
spell the same, and one that spells nothing is not seen.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer

from fairlane.scheduler.protocol.messages import ModelCard
from fairlane.worker.remote.api import Refused

_CONTEXT = 8
"""Tokens before a piece of text by which it is seen whether its own spell it: some tokenizers begin a text with a space
of their own."""
_ANCHOR = "\n"


class Retokeniser:
    """One model's tokenizer. Immutable."""

    def __init__(self, card: ModelCard) -> None:
        self._tokenizer: Tokenizer = Tokenizer.from_str(card.tokenizer_json)
        self._bos = None if card.bos_token is None else self._tokenizer.token_to_id(card.bos_token)
        added = self._tokenizer.get_added_tokens_decoder()
        self._control = {token_id for token_id, token in added.items() if token.special}

    def encode(self, text: str) -> list[int]:
        """Without the marks that a model may want around a text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Control tokens by their names."""
        text: str = self._tokenizer.decode([*token_ids], skip_special_tokens=False)
        return text

    def prompt(self, token_ids: Sequence[int], *, server_adds_mark: bool) -> str:
        """What reads as these tokens. `server_adds_mark`: the one that begins a text is put there by the server.

        Raises Refused where the text would be read as other control tokens: a name of one in what a user wrote is text,
        and cannot be told from the token by a server that takes text alone.
        """
        ids = [*token_ids]
        if server_adds_mark and ids[:1] == [self._bos]:
            del ids[0]
        text = self.decode(ids)
        if self._controls(self.encode(text)) != self._controls(ids):
            raise Refused("the engine takes text alone, in which this prompt would name other control tokens")
        return text

    def tokens(self, before: Sequence[int], text: str) -> list[int]:
        """Of a piece of text that goes on from these tokens."""
        if not text:
            return []
        context = [*before[-_CONTEXT:]]
        plain, anchor = self.encode(text), self.encode(_ANCHOR)
        anchored = self.encode(_ANCHOR + text)
        ways = [plain] if anchored[: len(anchor)] != anchor else [plain, anchored[len(anchor) :]]
        whole = self.decode(context) + text
        return next((ids for ids in ways if self.decode([*context, *ids]) == whole), plain)

    def _controls(self, token_ids: Sequence[int]) -> list[int]:
        return [token_id for token_id in token_ids if token_id in self._control]
