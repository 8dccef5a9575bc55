"""The bytes that each token of a vocabulary adds to text, so that detokenising a stream is O(1) per token.

Two families cover all models: byte-level vocabularies, whose tokens spell bytes in a fixed alphabet of 256 characters,
and vocabularies of text, with the byte tokens `<0x00>` to `<0xFF>` if the decoder knows them."""

import copy
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

# By kind of normalizer: the maximum number of text bytes that it can turn into one.
_SQUEEZES: Mapping[str | None, int] = {None: 1, "NFC": 4}
# Pre-tokenizers that drop no text unless configured to.
_KEEPS_ALL = {"ByteLevel", "Digits", "Split"}
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """Return the character that represents each byte in a byte-level vocabulary (as in GPT-2): itself if it is
    printable, else one from U+0100 on."""
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(0x100 + index): byte for index, byte in enumerate(hidden)}


class Vocabulary:
    """The tokens of one tokenizer. Safe to use from several threads: its caches only ever gain the same entries."""

    def __init__(self, tokenizer: Tokenizer, tokenizer_json: str) -> None:
        self._tokenizer = tokenizer
        document = json.loads(tokenizer_json)
        kinds = {part.get("type") for part in _parts(document.get("decoder"))}
        self._alphabet = _byte_alphabet() if "ByteLevel" in kinds else {}
        self._has_byte_tokens = "ByteFallback" in kinds
        added = tokenizer.get_added_tokens_decoder()
        self._special = {token_id: token.content for token_id, token in added.items() if token.special}
        self._anchor = self._find_anchor()
        spelled = document["model"].get("vocab", ()) if self._alphabet else ()
        self._mute = bytes(byte for character, byte in self._alphabet.items() if character not in spelled)
        # Bytes of text, at most; None if unknown.
        self.longest_token = _longest_piece(document, self._mute) if self._alphabet else None
        # Special tokens that plain text may produce: the unknown token and single bytes.
        self.spelled = frozenset(self._find_spelled(document["model"]))
        self._shown: Mapping[int, bytes] = {}
        self._hidden: Collection[int] = ()
        self._first: dict[int, bytes | None] = {}
        self._later: dict[int, bytes | None] = {}

    def showing(self, names: Collection[str] | None, *, hidden: Collection[int] = ()) -> "Vocabulary":
        """Return the vocabulary with these special tokens, or all, as text by name, and without the `hidden` tokens."""
        other = copy.copy(self)
        names = {*self._special.values()} if names is None else names
        other._shown = {
            **self._shown,
            **{token: name.encode() for token, name in self._special.items() if name in names},
        }
        other._hidden = hidden
        other._first, other._later = {}, {}
        return other

    def piece(self, token_id: int, *, first: bool) -> bytes | None:
        """Return the bytes that a token adds to text; None for special tokens and unknown ids. `first`: it begins the
        text, where some vocabularies drop the space."""
        pieces = self._first if first else self._later
        if token_id not in pieces:
            pieces[token_id] = self._make_piece(token_id, first)
        return pieces[token_id]

    def spell(self, token_ids: Sequence[int], *, first: bool) -> bytes | None:
        if first:
            for number, token_id in enumerate(token_ids, 1):
                piece = self.piece(token_id, first=True)
                if piece is not None:
                    return piece + (self.spell(token_ids[number:], first=False) or b"")
            return None
        later = self._later
        pieces = [
            piece
            for token_id in token_ids
            if (piece := later[token_id] if token_id in later else self.piece(token_id, first=False)) is not None
        ]
        return b"".join(pieces) if pieces else None

    def token_bytes(self, token_id: int) -> bytes:
        if token_id in self._special:
            return self._special[token_id].encode("utf-8")
        return self.piece(token_id, first=False) or b""

    def least_tokens(self, text: str) -> int:
        """Return a lower bound of the number of tokens in text of this length; 0 if there is none."""
        return (
            0
            if self.longest_token is None
            else len(text.encode("utf-8").translate(None, self._mute)) // self.longest_token
        )

    def _make_piece(self, token_id: int, first: bool) -> bytes | None:
        if token_id in self._hidden:
            return None
        if token_id in self._shown:
            return self._shown[token_id]
        token = None if token_id in self._special else self._tokenizer.id_to_token(token_id)
        if token is None:
            return None
        if self._alphabet:
            spelled = [self._alphabet.get(character) for character in token]
            return token.encode("utf-8") if None in spelled else bytes(byte for byte in spelled if byte is not None)
        byte = _BYTE_TOKEN.fullmatch(token) if self._has_byte_tokens else None
        if byte and not (first and self._decode(token_id) == ""):
            return bytes([int(byte[1], 16)])
        return self._text(token_id, first).encode("utf-8")

    def _text(self, token_id: int, first: bool) -> str:
        if first or self._anchor is None:
            return self._decode(token_id)
        return self._decode(self._anchor, token_id)[len(self._decode(self._anchor)) :]

    def _decode(self, *token_ids: int) -> str:
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def _find_spelled(self, model: Mapping[str, Any]) -> Iterator[int]:
        unknown = model.get("unk_id")  # as Unigram has it
        if unknown is None and model.get("unk_token") is not None:
            unknown = self._tokenizer.token_to_id(model["unk_token"])
        for token_id, name in self._special.items():
            if token_id == unknown or (self._has_byte_tokens and _BYTE_TOKEN.fullmatch(name)):
                yield token_id

    def _find_anchor(self) -> int | None:
        """Find a token that is a plain letter, so that the next token is not at the start of the text."""
        found = (self._tokenizer.token_to_id(letter) for letter in "aeinorstAEINORST")
        return next((token_id for token_id in found if token_id is not None), None)


def _longest_piece(document: Mapping[str, Any], mute: bytes) -> int | None:
    """Return the maximum number of text bytes per token of a byte-level vocabulary, not counting bytes without a token
    (`mute`); None if the tokenizer may drop text, or shrink it without a known bound."""
    model, added = document["model"], document.get("added_tokens", ())
    squeeze = _SQUEEZES.get((document.get("normalizer") or {}).get("type"))
    splitters = _parts(document.get("pre_tokenizer"))
    keeps_all = (
        model.get("type") == "BPE"
        and {"ByteLevel"} <= {part["type"] for part in splitters} <= _KEEPS_ALL
        and all(part.get("behavior") != "Removed" for part in splitters)
        and not any(token.get("lstrip") or token.get("rstrip") for token in added)
    )
    if squeeze is None or not keeps_all or (mute and squeeze > 1):
        return None
    return squeeze * max([*map(len, model["vocab"]), *(len(token["content"].encode("utf-8")) for token in added)])


def _parts(component: object) -> list[Mapping[str, Any]]:
    if not isinstance(component, dict):
        return []
    if component.get("type") != "Sequence":
        return [component]
    listed = component.get("decoders") or component.get("pretokenizers") or ()
    return [part for each in listed for part in _parts(each)]
