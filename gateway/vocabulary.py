"""What each token of a vocabulary adds to a text, in bytes: what makes detokenising a stream O(1) per token.

A tokenizer's own `decode` takes whole sequences, and a token may be a part of a character only. Two families cover
what models use: byte-level vocabularies, whose tokens spell bytes in a fixed alphabet of 256 characters, and all
others, whose tokens are text, but for the byte tokens `<0x00>` to `<0xFF>` where the decoder knows them.
"""

import json
import re

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary (as GPT-2 has it): itself where it prints,
    and one from U+0100 on where it does not."""
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(0x100 + index): byte for index, byte in enumerate(hidden)}


class Vocabulary:
    """The tokens of one tokenizer. Safe to use from several threads: its caches only ever gain the same entries."""

    def __init__(self, tokenizer: Tokenizer, tokenizer_json: str) -> None:
        self._tokenizer = tokenizer
        kinds = set(_kinds(json.loads(tokenizer_json).get("decoder")))
        self._alphabet = _byte_alphabet() if "ByteLevel" in kinds else {}
        self._has_byte_tokens = "ByteFallback" in kinds
        added = tokenizer.get_added_tokens_decoder()
        self._special = {token_id: token.content for token_id, token in added.items() if token.special}
        self._anchor = self._find_anchor()
        self._pieces: dict[tuple[int, bool], bytes | None] = {}

    def piece(self, token_id: int, *, first: bool) -> bytes | None:
        """What a token adds to a text; None for what no text shows: special tokens and unknown ids.

        `first`: nothing was shown before it (some vocabularies drop the space at the start of a text).
        """
        key = (token_id, first)
        if key not in self._pieces:
            self._pieces[key] = self._make_piece(token_id, first)
        return self._pieces[key]

    def token_bytes(self, token_id: int) -> bytes:
        """A token alone, as bytes: a special token's own name, nothing for an unknown id."""
        if token_id in self._special:
            return self._special[token_id].encode("utf-8")
        return self.piece(token_id, first=False) or b""

    def _make_piece(self, token_id: int, first: bool) -> bytes | None:
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

    def _find_anchor(self) -> int | None:
        """A token that is a plain letter: what follows it is not at the start of a text."""
        found = (self._tokenizer.token_to_id(letter) for letter in "aeinorstAEINORST")
        return next((token_id for token_id in found if token_id is not None), None)


def _kinds(decoder: object) -> list[str]:
    """The kinds of a decoder and of those it is made of, as the tokenizer's JSON names them."""
    if not isinstance(decoder, dict):
        return []
    return [decoder.get("type", ""), *(kind for part in decoder.get("decoders", ()) for kind in _kinds(part))]
