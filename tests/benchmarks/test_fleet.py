"""The fleet's benchmark: what it subtracts, what its client notes, and one small fleet with real processes."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from benchmarks.fleet import load, worker
from benchmarks.fleet.__main__ import main, table
from benchmarks.fleet.load import TICK_S, TICKS, Order, Reader, prompt_of
from benchmarks.fleet.readings import Spent
from benchmarks.fleet.replay import Recorder, Replay
from benchmarks.fleet.stand import Fleet, Shape
from fairlane.gateway.model_text.tokenizer import TextModel

HERE = Path(__file__).parents[2]
SMALL = Shape(gateways=1, workers=1, idle_workers=2, rows=8, step_ms=2.0, prompt_tokens=60, tokens=400, rest_s=0.5)
CHATS, CHATS_PER_S = 2, 1.0
"""One after the other: steps of several chats would share what they send."""


def test_what_an_idle_fleet_spends_in_the_same_time_is_no_part_of_a_load() -> None:
    idle = Spent(seconds=2.0, scripts=20.0, commands=200.0)

    spent = Spent(seconds=4.0, scripts=100.0, commands=1_000.0).above(idle, 10)

    assert (spent.scripts, spent.commands) == (6.0, 60.0)


def test_what_clients_sent_is_executed_again_with_each_stream_read_on(valkey_url: str) -> None:
    key, stream, value = f"replayed:{time.monotonic_ns()}", f"stream:{time.monotonic_ns()}", bytes(range(256))
    recorder = Recorder()
    recorder.begin(valkey_url)
    with redis.Redis.from_url(valkey_url) as store:
        store.set(key, value)
        store.eval("redis.call('SET', KEYS[1] .. ':2', ARGV[1])", 1, key, "5")
        for number in range(2):
            store.xadd(stream, {"number": number})
            store.xread({stream: "0-0"})
        store.echo("the end")
        recorded: list[list[bytes]] = []
        while [b"ECHO", b"the end"] not in recorded:
            recorded += recorder.cut().commands
        store.delete(key, f"{key}:2", stream)

        replay = Replay(valkey_url)
        replay.run([command for command in recorded if key.encode() in command or stream.encode() in command])

        assert (store.get(key), store.get(f"{key}:2")) == (value, b"5")
        entries: Any = store.xrange(stream)
        assert replay.last_ids == {stream.encode(): entries[-1][0]}
        assert len(entries) == 2


def test_the_model_reads_letter_by_letter_and_each_token_says_when_its_step_ended() -> None:
    text = TextModel(worker.card())
    order = Order(
        kind="stream", url="", seconds=0.0, model="", urls=[], chats=1, every_s=1.0, prompt_tokens=60, tokens=1
    )

    assert len(text.encode(prompt_of(order, 1))) == 60 - load.TEMPLATE_TOKENS
    assert [text.token_text(tick) for tick in range(TICKS)] == [f" {tick}" for tick in range(TICKS)]
    assert (worker.MODEL, worker.TICKS, worker.TICK_S) == (load.MODEL, load.TICKS, load.TICK_S)


def test_the_client_notes_the_delay_of_every_token_however_its_bytes_arrive() -> None:
    made = int(time.monotonic() / TICK_S) - 50
    chunk = b'data: {"content":" %d"}\n\ndata: {"content":" %d %d"}\n\n' % (made % TICKS, made % TICKS, made % TICKS)
    reader = Reader()

    for place in range(len(chunk)):
        reader.data_received(chunk[place : place + 1])

    assert len(reader.ticks) == 3
    assert all(delay >= 50 for delay in reader.ticks)


def test_a_checkout_is_compared_with_the_first_round_by_round() -> None:
    rounds = [[{"scripts": 40.0}, {"scripts": 10.0}], [{"scripts": 20.0}, {"scripts": 8.0}]]

    cells = [[*column.cells] for column in table(["old", "new"], rounds).columns]

    assert cells == [["scripts"], ["30"], ["9"], ["0.325 (0.25 to 0.4)"]]


@pytest.mark.system
def test_a_fleet_streams_chats_whose_tokens_the_store_never_sees() -> None:
    with ExitStack() as stack:
        turn = Fleet(HERE, SMALL, stack).turn(CHATS_PER_S, CHATS / CHATS_PER_S)

    assert (turn.seen.chats, turn.seen.tokens) == (CHATS, CHATS * SMALL.tokens)
    assert turn.spent.scripts < SMALL.tokens / 2


@pytest.mark.system
@pytest.mark.thorough
def test_the_command_measures_two_checkouts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "1", "--seconds", "0.1", "--workers", "1", "--gateways", "1", str(HERE), str(HERE)]) == 0

    assert "store commands of a chat" in capsys.readouterr().out
