"""The gateway's benchmark: what its client takes for an answer, its verdicts, and the whole of it at its smallest."""

import json
import os
from pathlib import Path

import pytest

from benchmarks.gateway import compare
from benchmarks.gateway.__main__ import ALONE, DIRECT, LOADS, PLAIN, STREAM, Turn, lines, main, peer_loads
from benchmarks.gateway.instant import card
from benchmarks.gateway.load import Order, Seen, request_bytes, tokens_of
from benchmarks.gateway.mock import answer
from fairlane.gateway.model_text.tokenizer import TextModel

OK = b"HTTP/1.1 200 OK\r\n\r\n"
STREAMED = (
    OK + b'data: {"delta":{"content":""}}\n\ndata: {"delta":{"content":"a"}}\n\ndata: {"delta":{"content":"b"}}\n\n'
)


def order(kind: str, tokens: int) -> Order:
    return Order(kind=kind, url="http://127.0.0.1:1", seconds=1.0, tokens=tokens, model="instant")  # type: ignore[arg-type]


def turn(*, requests: int, tokens: int, latency_ms: float, cpu_s: float) -> Turn:
    return Turn(Seen(1.0, requests, tokens, latencies_ms=[latency_ms] * requests), cpu_s)


def test_a_stream_counts_where_all_its_tokens_and_its_end_came() -> None:
    whole = STREAMED + b"data: [DONE]\n\n"

    assert tokens_of(whole, order("stream", 2)) == 2
    assert tokens_of(whole, order("stream", 3)) == 0
    assert tokens_of(STREAMED, order("stream", 2)) == 0


def test_an_answer_that_is_no_200_counts_for_nothing() -> None:
    body = b'{"usage": {"completion_tokens": 2}}'

    assert tokens_of(OK + body, order("plain", 2)) == 2
    assert tokens_of(b"HTTP/1.1 503 no\r\n\r\n" + body, order("plain", 2)) == 0


def test_a_request_says_how_long_its_body_is() -> None:
    head, _, body = request_bytes(order("plain", 2)).partition(b"\r\n\r\n")

    assert f"content-length: {len(body)}".encode() in head


def test_the_instant_model_reads_prompts_and_speaks_in_words() -> None:
    text = TextModel(card())

    assert "".join(map(text.token_text, text.encode("Hello"))) == "Hello"
    assert text.token_text(card().vocab_size - 1).startswith(" word")


def test_latency_is_what_the_gateway_adds_and_cost_is_all_that_it_takes() -> None:
    turns = {
        PLAIN: [turn(requests=1_000, tokens=16_000, latency_ms=9.0, cpu_s=0.2)],
        STREAM: [turn(requests=10, tokens=2_000, latency_ms=9.0, cpu_s=0.03)],
        ALONE: [turn(requests=10, tokens=160, latency_ms=1.5, cpu_s=1.0)],
        DIRECT: [turn(requests=10, tokens=160, latency_ms=0.75, cpu_s=0.0)],
    }

    found = {line.name: (line.value, line.met) for line in lines(turns) if line.value is not None}

    assert found == {
        "added latency p50, ms": (0.75, True),
        "added latency p99, ms": (0.75, True),
        "CPU per plain request, µs": (pytest.approx(200.0), True),
        "CPU per streamed token, µs": (pytest.approx(15.0), False),
    }


def test_the_mock_behind_the_peers_answers_as_the_client_expects() -> None:
    for kind in ("plain", "stream"):
        asked = order(kind, 3)
        _, _, body = request_bytes(asked).partition(b"\r\n\r\n")

        assert tokens_of(answer(json.loads(body)), asked) == 3


def test_a_peer_counts_by_the_lower_end_of_its_rounds() -> None:
    (peer,) = peer_loads(None, "http://127.0.0.1:1")
    fast, slow = (turn(requests=requests, tokens=16 * requests, latency_ms=1.0, cpu_s=0.1) for requests in (300, 100))
    turns = {load: [fast, fast] for load in LOADS} | {peer: [slow, slow]}

    found = {line.name: line for line in lines(turns)}

    assert found["plain requests/s, times Portkey's"].value == pytest.approx(3.0)
    assert found["plain requests/s, times Portkey's"].met
    assert found["plain requests/s, times LiteLLM's"].met is None


@pytest.mark.system
@pytest.mark.thorough
def test_the_command_measures_a_whole_gateway(tmp_path: Path) -> None:
    found = tmp_path / "lines.json"

    assert main(["--rounds", "1", "--seconds", "0.5", "--json", str(found)]) in (0, 1)

    assert {line["line"] for line in json.loads(found.read_text())} == {8}


def test_a_checkout_is_compared_with_the_first_round_by_round() -> None:
    rounds = [[400.0, 300.0], [200.0, 160.0]]

    cells = [[*column.cells] for column in compare.table([Path("old"), Path("new")], rounds).columns]

    assert cells[0] == ["old", "new"]
    assert cells[1] == ["300.0", "230.0"]
    assert cells[3] == ["1.000", "0.775"]


@pytest.mark.system
@pytest.mark.thorough
def test_the_gateways_of_two_checkouts_stand_side_by_side() -> None:
    cores, here = os.sched_getaffinity(0), Path(__file__).parents[2]

    [costs] = compare.compare([here, here], STREAM, rounds=1, seconds=0.5)

    assert all(cost_us > 0.0 for cost_us in costs)
    assert len(costs) == 2
    assert os.sched_getaffinity(0) == cores
