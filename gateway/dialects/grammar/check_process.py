"""The child process that checks grammars: one structure per line on stdin, one result per line on stdout.

It compiles a grammar as a worker would, and advances it by some tokens of a sample vocabulary: an error here would also
occur in a worker. Grammars whose masks would exceed a worker's time budget are rejected."""

import ctypes
import json
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, grammar_from

from fairlane.gateway.dialects.grammar.enforce import Fault, enforceable
from fairlane.gateway.dialects.grammar.one_of import with_any_of
from fairlane.gateway.dialects.grammar.schema_tree import Schema, Steps, spelled
from fairlane.gateway.dialects.grammar.simplify import closed, simplified
from fairlane.gateway.dialects.grammar.structure import Structure
from fairlane.scheduler.protocol.grammar_limits import (
    BUDGET_PER_TOKEN_S,
    MAX_COMPILED_BYTES,
    MAX_GRAMMAR_CHARS,
    PARSER_LIMITS,
    MaskBudget,
)

# Address space, much of which the libraries use.
MOST_MEMORY_BYTES = 1 << 30
# Half of a worker's, so that a grammar that recurses too deeply fails here.
STACK_BYTES = 4 << 20
WALKS, WALK_TOKENS = 4, 64
TOO_SLOW = f"it takes more than {BUDGET_PER_TOKEN_S * 1e3:g} ms to find what may follow a token; make it less ambiguous"
# Whitespace between the parts of JSON, bounded so that a model cannot indent forever. Responses may be indented for
# readability; arguments of calls (`JSON_OPTIONS` in `gateway/dialects/tools/grammar.py`) are written as in training
# data.
WHITESPACE = r"[ \t]?|\r?\n[ \t]{0,64}"

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


class CheckResult(msgspec.Struct, frozen=True):
    """The result of a check: the grammar for a worker, or its fault."""

    grammar: str = ""
    fault: str = ""
    # Of the keyword of a schema that causes the fault, if it is known.
    path: Steps = ()
    compiled_bytes: int = 0
    spent_s: float = 0.0


def _words() -> list[str]:
    starts, ends = _SYLLABLES[::2], ("", *_SYLLABLES[::8])
    words = [space + start + end for space in ("", " ") for start in starts for end in ends]
    words += [syllable.capitalize() for syllable in _SYLLABLES]
    return [word for word in dict.fromkeys([*words, *_MARKS]) if len(word) > 1]


class SampleVocabulary:
    """The vocabulary for trying grammars, as llguidance's `TokenizerWrapper` expects it.

    It has single bytes, English syllables with and without a leading space, and the punctuation of JSON; no token has
    two digits, as in most vocabularies. It is small, but mask times are proportional to a model's."""

    tokens: Sequence[bytes] = (*(bytes([byte]) for byte in range(256)), *(word.encode() for word in _words()), b"<end>")
    eos_token_id = len(tokens) - 1
    bos_token_id = None
    special_token_ids: Sequence[int] = (eos_token_id,)

    def __call__(self, text: bytes | str) -> list[int]:
        return [*(text.encode() if isinstance(text, str) else text)]


class _Heap(ctypes.Structure):
    NAMES = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = tuple((name, ctypes.c_size_t) for name in NAMES)


def _heap_reader() -> Callable[[], int]:
    read = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if read is None:
        return lambda: 0
    read.restype = _Heap

    def allocated() -> int:
        heap = read()
        return int(heap.uordblks + heap.hblkhd)

    return allocated


class Check:
    """Checks grammars, one after another."""

    def __init__(self) -> None:
        self._tokenizer = LLTokenizer(TokenizerWrapper(SampleVocabulary()))
        self._limits = LLParserLimits(**PARSER_LIMITS)
        self._allocated = _heap_reader()

    def run(self, structure: Structure) -> CheckResult:
        if structure.kind == "json_schema":
            schema, fault = self._served(json.loads(structure.text))
            if fault is not None:
                return CheckResult(fault=fault.reason, path=fault.path)
            grammar = _of_schema(schema)
        else:
            try:
                grammar = grammar_from(structure.kind, structure.text)
            except ValueError as error:
                return CheckResult(fault=str(error))
            reason = self._fault_of(grammar)
            if reason:
                return CheckResult(fault=reason)
        before = self._allocated()
        start = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        reason = self._walk(start)
        compiled_bytes = max(0, self._allocated() - before)
        if not reason and compiled_bytes > MAX_COMPILED_BYTES:
            reason = f"compiled it takes {compiled_bytes >> 20} MiB of memory, more than {MAX_COMPILED_BYTES >> 20} MiB"
        return CheckResult(fault=reason) if reason else CheckResult(grammar=grammar, compiled_bytes=compiled_bytes)

    def _served(self, schema: Schema | bool) -> tuple[Schema, Fault | None]:
        if schema is False:
            return {}, Fault("no value matches the schema `false`")
        stated = {} if schema is True else schema
        reduced = closed(with_any_of(simplified(stated)))
        served, fault = enforceable(reduced, lambda each: self._fault_of(_of_schema(each)))
        return served, fault and Fault(fault.reason, spelled(stated, fault.path))

    def _fault_of(self, grammar: str) -> str:
        if len(grammar) > MAX_GRAMMAR_CHARS:
            return f"it is longer than {MAX_GRAMMAR_CHARS} characters"
        is_wrong, words = LLMatcher.validate_grammar_with_warnings(grammar, self._tokenizer, limits=self._limits)
        return (words[0] if words else "it cannot be compiled") if is_wrong else ""

    def _walk(self, start: LLMatcher) -> str:
        for way in range(WALKS):
            matcher, chooser, budget = start.deep_copy(), random.Random(way), MaskBudget()
            for _ in range(WALK_TOKENS):
                began_s = time.thread_time()
                bits = int.from_bytes(matcher.compute_bitmask(), "little")
                budget.charge(MASK_SCALE * (time.thread_time() - began_s))
                if matcher.is_error():
                    return matcher.get_error()
                if budget.is_spent:
                    return TOO_SLOW
                if not bits:
                    return "it allows no text"
                token = _pick(bits, chooser)
                if token == SampleVocabulary.eos_token_id or not matcher.consume_token(token):
                    break
                budget.tokens += 1
        return start.get_error() if start.is_error() else ""


def _pick(bits: int, chooser: random.Random) -> int:
    place = chooser.randrange(len(SampleVocabulary.tokens))
    later = bits >> place
    return place + _lowest(later) if later else _lowest(bits)


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _of_schema(schema: Schema) -> str:
    schema = {name: value for name, value in schema.items() if name != "x-guidance"}  # llguidance's own options
    return LLMatcher.grammar_from_json_schema(
        schema, overrides={"whitespace_pattern": WHITESPACE, "whitespace_flexible": True, "lenient": False}
    )


def serve() -> None:
    """Check structures until stdin ends."""
    check, decode = Check(), msgspec.json.Decoder(Structure).decode
    for line in sys.stdin.buffer:
        began_s = time.thread_time()
        try:
            result = check.run(decode(line))
        except Exception as error:  # noqa: BLE001 - whatever a grammar breaks, the next one is checked
            result = CheckResult(fault=f"it cannot be compiled ({type(error).__name__})")
        result = msgspec.structs.replace(result, spent_s=time.thread_time() - began_s)
        sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
