"""Tokenises the text of a server that reports no token ids, and converts prompts to text for servers that do not accept
ids.

The tokens spell the received text; the server may have sampled other tokens with the same spelling."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from fairlane.scheduler.protocol.messages import ModelCard
from fairlane.worker.remote.api import Refused

# Context tokens used to check that a tokenisation spells a piece of text: some tokenizers prepend a space to a text.
_CONTEXT = 8
_ANCHOR = "\n"


class Retokeniser:
    """One model's tokenizer. Immutable."""

    def __init__(self, card: ModelCard) -> None:
        self._tokenizer: Tokenizer = Tokenizer.from_str(card.tokenizer_json)
        self._bos = None if card.bos_token is None else self._tokenizer.token_to_id(card.bos_token)
        added = self._tokenizer.get_added_tokens_decoder()
        self._marks = {*self._tokenizer.encode("").ids, *self._tokenizer.encode("", "").ids}
        self._control = {token_id: token.content for token_id, token in added.items() if token.special}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode([*token_ids], skip_special_tokens=False)
        return text

    def prompt(self, token_ids: Sequence[int], *, server_adds_mark: bool) -> str:
        """Return the text of these tokens. `server_adds_mark` is true if the server adds the beginning-of-text token.

        Raises Refused if the text would be read with other control tokens."""
        ids = [*token_ids]
        if server_adds_mark and ids[:1] == [self._bos]:
            del ids[0]
        text = self.decode(ids)
        if self._controls(self.encode(text)) != self._controls(ids):
            raise Refused("the engine accepts only text, in which this prompt would spell other control tokens")
        return text

    def plain(self, token_ids: Sequence[int]) -> str:
        """Return the text of these tokens without the marks that the tokenizer adds around one text or two. Words that
        the server would read as control tokens get a space after their first character.

        Raises Refused if it would read control tokens nevertheless."""
        ids = [token_id for token_id in token_ids if token_id not in self._marks]
        text, meant = self.decode(ids), self._controls(ids)  # such as the token of an unknown word
        if self._controls(self.encode(text)) == meant:
            return text
        words = [word for token_id, word in self._control.items() if token_id not in meant]
        for word in words:
            text = text.replace(word, f"{word[0]} {word[1:]}")
        if any(word in text for word in words):
            raise Refused("the engine accepts only text, in which this input would spell control tokens")
        return text

    def tokens(self, before: Sequence[int], text: str) -> list[int]:
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
