"""The vocabulary for trying grammars: small, but similar enough to a model's vocabulary that mask times are
proportional.

It has single bytes, words of English letters, with and without a leading space, and the punctuation of JSON. No token
has two digits, as in most vocabularies."""

from collections.abc import Sequence

# How much longer a mask takes on a model's vocabulary. Measured over 64 tokens on one of 49,152 tokens: 5 for an
# ambiguous grammar, 2 to 7 for schemas of objects, patterns and unions.
MASK_SCALE = 6.0
_ONSETS = ("", "b", "c", "d", "f", "g", "l", "m", "n", "p", "r", "s", "t", "w", "st", "tr")
_RIMES = ("a", "e", "i", "o", "an", "ar", "at", "en", "er", "ing", "ion", "or")
_SYLLABLES = [onset + rime for onset in _ONSETS for rime in _RIMES]
_MARKS = (
    *('","', '":"', '": "', '": ', '":', '": [', '": {', '","', '", "', '",', '{"', '[{"', '["', '"}', '"]', '"}]'),
    *("},", "],", ", ", "}}", "]]", "\n  ", "\n    ", "  ", "    ", "true", "false", "null", "->", "==", "():", "//"),
)


def _words() -> list[str]:
    starts, ends = _SYLLABLES[::2], ("", *_SYLLABLES[::8])
    words = [space + start + end for space in ("", " ") for start in starts for end in ends]
    words += [syllable.capitalize() for syllable in _SYLLABLES]
    return [word for word in dict.fromkeys([*words, *_MARKS]) if len(word) > 1]


class SampleVocabulary:
    """Single bytes, words and an end token, as llguidance's `TokenizerWrapper` expects them."""

    tokens: Sequence[bytes] = (*(bytes([byte]) for byte in range(256)), *(word.encode() for word in _words()), b"<end>")
    eos_token_id = len(tokens) - 1
    bos_token_id = None
    special_token_ids: Sequence[int] = (eos_token_id,)

    def __call__(self, text: bytes | str) -> list[int]:
        return [*(text.encode() if isinstance(text, str) else text)]
