"""The one reader of callers' JSON: no other place decodes it, and what it reads is bounded by count."""

import ast
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

import fairlane.gateway
from fairlane.gateway.api.stored_input import _previous_id
from fairlane.gateway.batches.lines import LineEntry, LineScanner, read_line
from fairlane.gateway.dialects.openai.requests import parse_completion
from fairlane.gateway.dialects.openai.tools import ToolCall
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http import json_reader, lifted
from fairlane.gateway.http.json_reader import LARGE_BODY_BYTES, read_object, read_text, scalars
from fairlane.gateway.http.lifted import PIECE_BYTES, Lifted
from fairlane.gateway.middleware.idempotency import asks_for_stream

GATEWAY = Path(next(iter(fairlane.gateway.__path__)))
DECODERS = {"json.loads", "json.load", "json.JSONDecoder", "msgspec.json.decode", "msgspec.json.Decoder"}
METHODS = {"model_validate_json", "validate_json", "parse_raw"}
ELSEWHERE = {
    "batches/batch_records.py": "the gateway's own records in the store",
    "batches/files.py": "the gateway's own records in the store",
    "batches/message_results.py": "records that this gateway made",
    "batches/results.py": "an answer that this gateway made",
    "config.py": "what the parent process hands on",
    "dialects/grammar/check_process.py": "in a process of its own, with a limit on its time",
    "dialects/grammar/checker.py": "what that process answers",
    "dialects/grammar/enforce.py": "in the same process",
    "dialects/grammar/one_of.py": "in the same process",
    "dialects/grammar/simplify.py": "in the same process",
    "dialects/grammar/structure.py": "a grammar that this gateway made",
    "identity/signing_keys.py": "the identity provider's, which the settings name",
    "control/ledger/exporter.py": "the gateway's own records in the ledger's storage",
    "dialects/openai/response_body.py": "a schema that was read",
    "dialects/openai/response_conversation.py": "responses and conversations that this gateway kept",
    "control/operators/single_sign_on.py": "the identity provider's, which the settings name",
    "pipeline/constraints.py": "a grammar that was compiled",
    "model_text/vocabulary.py": "the model's own card",
    "websocket/turn.py": "events that this gateway made",
    "dialects/tools/syntax.py": "files of this package",
    "dialects/tools/template_reader.py": "the model's own template",
    "insight/request_traces/simulate_process.py": "in a process of its own",
    "insight/request_traces/simulator.py": "what that process answers",
}
"""Files that decode what neither a caller nor a model wrote, or not in the gateway's own process."""
READER = {"http/json_reader.py", "http/lifted.py"}
EMPTY_LISTS = b'{"%b":[' + b"[]," * (8 * 2**20 // 3) + b"[]]}"


def decodes(path: Path) -> bool:
    def names() -> Iterator[str]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                yield ast.unparse(node)
                yield node.attr
            elif isinstance(node, ast.ImportFrom) and node.module in ("json", "msgspec.json"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    return not (DECODERS | METHODS).isdisjoint(names())


def test_no_other_place_of_the_gateway_decodes_json_of_callers() -> None:
    found = {str(path.relative_to(GATEWAY)) for path in GATEWAY.rglob("*.py") if decodes(path)}

    rule = "read what a caller or a model wrote by json_reader.py; name any other file in ELSEWHERE, with its reason"
    assert found - READER == set(ELSEWHERE), rule


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The largest number of values that a decoder was given at once."""
    most = [0]

    def counting(decode: Callable[..., object]) -> Callable[..., object]:
        def counted(document: str | bytes, *options: object, **named: object) -> object:
            text = document.encode() if isinstance(document, str) else bytes(document)
            most[0] = max(most[0], sum(map(text.count, (b",", b"[", b"{"))))
            return decode(document, *options, **named)

        return counted

    for name in ("_decode", "_decode_text", "_decode_lenient", "_decode_fields", "_decode_scalar"):
        monkeypatch.setattr(json_reader, name, counting(getattr(json_reader, name)))
    monkeypatch.setattr(json, "loads", counting(json.loads))
    for name in ("_read_ids", "_read_scalars"):
        monkeypatch.setattr(lifted, name, counting(getattr(lifted, name)))
    monkeypatch.setattr(msgspec.json, "decode", counting(msgspec.json.decode))
    return lambda: most[0]


def scanned(line: bytes) -> LineEntry:
    scanner = LineScanner()
    scanner.feed(line)
    return scanner.finish()[0]


@pytest.mark.parametrize(
    "read",
    [
        lambda: asks_for_stream(EMPTY_LISTS % b"stream"),
        lambda: _previous_id(EMPTY_LISTS % b"previous_response_id"),
        lambda: ToolCall(name="f", arguments=(EMPTY_LISTS % b"a").decode()).parsed_arguments(),
        lambda: scanned((EMPTY_LISTS % b"custom_id")[: 2**20 - 2] + b"]}"),
        lambda: read_line((EMPTY_LISTS % b"method")[: 2**20], LineEntry(0, 2**20, 1, 0, 0, 0, 0), "/v1/completions"),
        lambda: asks_for_stream(b'{"stream": true, "prompt": [' + b"1," * 4_000_000 + b"1]}"),
    ],
    ids=["idempotency", "previous response", "arguments of a call", "a batch's file", "a batch's line", "many numbers"],
)
def test_a_document_of_millions_of_values_reaches_no_decoder(
    read: Callable[[], object], largest: Callable[[], int]
) -> None:
    read()

    assert largest() <= 150_000


def test_a_schema_of_millions_of_values_is_refused_undecoded(largest: Callable[[], int]) -> None:
    body = {"model": "tiny", "prompt": "a", "guided_json": (EMPTY_LISTS % b"a").decode()}
    text = json.dumps(body).encode()
    with pytest.raises(ApiError) as refused:
        parse_completion(text)

    assert refused.value.param == "guided_json"
    assert largest() <= 150_000


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": [' + b"[]," * 49_000 + b"[]]}",
        b'{"a": [' + b"[]," * 2_700_000 + b"[]]}",
        b'{"a": ' + b"]" * 2_000_000,
        b'{"a": ' + (b"[" + b" " * PIECE_BYTES) * 100,
        b'{"a": ' + (b"[" + b" " * 64) * 49_000,
        b'{"a": ' + (b"[" + b" " * 64 + b"{]") * 24_000,
    ],
    ids=["as many as are read", "too many", "ends alone", "open and long", "open and many", "of objects"],
)
def test_a_large_document_costs_calls_by_its_size_and_not_by_its_lists(body: bytes) -> None:
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        with suppress(ApiError):
            Lifted(body, None)
    finally:
        sys.setprofile(None)

    assert calls <= 100 + 20 * (len(body) // PIECE_BYTES + 1)


@pytest.mark.parametrize("length", [62, 63, 64, 65, PIECE_BYTES - 100, PIECE_BYTES, PIECE_BYTES + 100])
@pytest.mark.parametrize("before", [0, 1, PIECE_BYTES - 70, PIECE_BYTES - 20])
def test_a_list_is_found_wherever_a_piece_ends(length: int, before: int) -> None:
    inner = b"1," * (length // 2) + b"1" * (length % 2 or 2)
    document = b'{"a":' + b" " * before + b"[[" + inner.rstrip(b",") + b"],[],[{}]]}" + b" " * LARGE_BODY_BYTES

    read = Lifted(document, 10**6)

    assert read_object(document, token_ids=10**6)["a"][1:] == json.loads(document)["a"][1:]
    assert list(read_object(document, token_ids=10**6)["a"][0]) == json.loads(document)["a"][0]
    assert bool(read.values) == (len(inner) >= 64)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"stream": true}', True),
        (b'{"stream": false}', None),
        (b'{"stream": "true"}', "true"),
        (b'{"a": {"stream": true}}', None),
        (b'{"a": "\\"stream\\": true"}', None),
        (b'[{"stream": true}]', None),
        (b'{"stream": true', None),
        (b"[" * 10_000, None),
    ],
)
@pytest.mark.parametrize("padding", [b"", b" " * LARGE_BODY_BYTES], ids=["small", "large"])
def test_a_field_is_read_without_the_rest(body: bytes, expected: object, padding: bytes) -> None:
    found = scalars(padding + body, ["stream"])

    assert (found.get("stream") or None) == expected


def test_a_field_behind_long_lists_and_texts_is_read() -> None:
    body = {"prompt": list(range(50_000)), "text": "a\n" * PIECE_BYTES, "stream": True, "n": 2}

    assert scalars(json.dumps(body).encode(), ["stream", "n", "prompt", "text"]).items() >= {("stream", True), ("n", 2)}


@pytest.mark.parametrize(
    "text",
    [
        "a\n" * PIECE_BYTES,
        "\n" + "é" * PIECE_BYTES,
        "\U0001f600" * PIECE_BYTES + "\\",
        '"' * PIECE_BYTES,
        "\x00" + "漢" * PIECE_BYTES,
    ],
    ids=["lines", "two bytes", "pairs", "quotes", "three bytes"],
)
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("shift", range(4))
def test_a_long_text_is_read_in_pieces_as_a_parser_reads_it(text: str, ascii_only: bool, shift: int) -> None:
    body = json.dumps({"a": "x" * shift + text, "b": text}, ensure_ascii=ascii_only).encode()

    assert read_object(body) == json.loads(body)
    assert len(Lifted(body, 0).text) < len(body) / 2


@pytest.mark.parametrize("broken", [b"\\x", b"\\u12", b"\n", b"\xff", b"\\"])
def test_a_long_text_that_is_not_json_is_refused(broken: bytes) -> None:
    body = b'{"a": "' + b"\\n" * PIECE_BYTES + broken + b'"}'

    with pytest.raises(ApiError) as refused:
        read_object(body)
    assert refused.value.status == 400


def test_a_long_name_of_a_field_is_refused() -> None:
    with pytest.raises(ApiError, match="field's name is longer"):
        read_object(b'{"' + b"\\n" * PIECE_BYTES + b'" : 1}')


def test_a_text_within_a_body_holds_a_bounded_number_of_values() -> None:
    assert read_text(json.dumps({"a": ["b"] * 9_000})) == {"a": ["b"] * 9_000}
    with pytest.raises(ValueError, match="more JSON"):
        read_text(json.dumps(["b"] * 11_000))
    with pytest.raises(ValueError, match="more JSON"):
        read_text('"' + "a" * 2**20 + '"')


class Unsearched(str):
    """A text that no one searches."""

    def count(self, *_: object) -> int:
        raise AssertionError("searched, which keeps all other threads waiting")


def test_a_text_that_is_too_long_is_refused_unread() -> None:
    with pytest.raises(ValueError, match="more JSON"):
        read_text(Unsearched("[" * (2**20 + 1)))
