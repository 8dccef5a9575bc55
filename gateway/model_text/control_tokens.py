"""Tokenises text of two origins: control tokens are recognised in the template's own characters, not in the caller's.

Each control token is given a random name that no caller can guess, which replaces the token's name in the
template's own text. The whole text is then tokenised at once, so merges across the two origins are the model's own."""

import copy
import re
import secrets
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain

from tokenizers import AddedToken, Tokenizer

from fairlane.gateway.model_text.template_taint import runs

_BRACKETED = re.compile(r"[<\[{].+[>\]}]", re.DOTALL)
_REMEMBERED_RUNS = 1024
# Replaces a control token that the model produces from plain text, which Unigram vocabularies can do.
_FORGED = -1


class ControlTokens:
    """One model's control tokens, and its tokenizer with their names hidden. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, template: str, spelled: Iterable[int] = ()) -> None:
        """`template`: the source of the chat template. `spelled`: special tokens that plain text may produce."""
        added = tokenizer.get_added_tokens_decoder()
        # Special tokens, and markup tokens that the template writes, such as `<tool_call>`.
        self.ids = frozenset(token for token, entry in added.items() if _is_control(entry, template))
        names = {token: _alias() if token in self.ids else entry.content for token, entry in added.items()}
        self._hidden, size = _without_added_tokens(tokenizer)  # shares the model, by far the largest part
        self._hidden.add_tokens([_named(entry, names[token]) for token, entry in added.items()])
        # The model's id for each id of the hidden tokenizer.
        self._real = list(range(size + len(added)))
        for token in self.ids.difference(spelled):
            if token < size:
                self._real[token] = _FORGED
        for token, name in names.items():
            alias = self._hidden.token_to_id(name)
            if alias is not None:
                self._real[alias] = token
        aliases = {added[token].content: names[token] for token in self.ids}
        longest_first = sorted(aliases, key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._aliased = lru_cache(_REMEMBERED_RUNS)(lambda own: pattern.sub(lambda found: aliases[found[0]], own))

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the token ids of text; its tainted part produces no control token."""
        text = "".join([run if is_given else self._aliased(run) for run, is_given in runs(text)])
        # The library's plain `encode` would block all other threads, including the event loop's.
        [encoding] = self._hidden.encode_batch_fast([text], add_special_tokens=False)
        found = encoding.ids
        ids = tuple(map(self._real.__getitem__, found))
        return self._unforged(found, ids) if _FORGED in ids else ids

    def _unforged(self, found: list[int], ids: tuple[int, ...]) -> tuple[int, ...]:
        spelled = [self._letters(token) if real == _FORGED else (real,) for token, real in zip(found, ids, strict=True)]
        return tuple(chain.from_iterable(spelled))

    def _letters(self, token: int) -> list[int]:
        name = self._hidden.id_to_token(token) or ""
        letters = self._hidden.encode_batch_fast(list(name), add_special_tokens=False)
        ids = [self._real[letter] for encoding in letters for letter in encoding.ids]
        return [real for real in ids if real != _FORGED]


def _without_added_tokens(tokenizer: Tokenizer) -> tuple[Tokenizer, int]:
    bare = Tokenizer(tokenizer.model)
    bare.normalizer = tokenizer.normalizer
    bare.pre_tokenizer = tokenizer.pre_tokenizer
    known = bare.get_vocab_size()
    size = 1 + max(bare.get_vocab().values(), default=-1)
    bare.add_tokens([_alias() for _ in range(size - known)])  # new ids start at the number of tokens, even with gaps
    return bare, size


def _alias() -> str:
    return f"<{secrets.token_hex(8)}>"


def _is_control(token: AddedToken, template: str) -> bool:
    if token.special:
        return True
    return _BRACKETED.fullmatch(token.content) is not None and token.content in template


def _named(token: AddedToken, name: str) -> AddedToken:
    named = copy.copy(token)
    named.content = name
    return named
