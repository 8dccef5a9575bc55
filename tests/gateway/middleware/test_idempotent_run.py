"""What a run says to those who listen: each hears all of it at its own pace, or is told that it cannot."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from fairlane.gateway.answers.chunks import KeepAliveSchedule
from fairlane.gateway.errors import ApiError, error_body
from fairlane.gateway.http import sse
from fairlane.gateway.middleware.idempotency import Listener, asks_for_stream
from fairlane.gateway.middleware.idempotent_run import MOST_ABANDONED, Lost, Recording, Run, Runs
from fairlane.quotas.idempotency import IdempotencyRecords, Name
from tests.support.counted import bytecodes

pytestmark = pytest.mark.anyio

STREAM = b'{"stream": true}'


class StandIn:
    """A run, as a listener sees it."""

    def __init__(self, recording: Recording, *, is_elsewhere: bool = False) -> None:
        self.recording = recording
        self.is_mine = not is_elsewhere
        self.is_elsewhere = is_elsewhere


class Client:
    """Takes what it is sent, as long as it is open."""

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, message: Message) -> None:
        await self.open.wait()
        self.heard.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.heard)

    @property
    def is_whole(self) -> bool:
        return bool(self.heard) and not self.heard[-1].get("more_body", True)


def listening(
    recording: Recording,
    client: Client,
    *,
    wants_stream: bool = True,
    is_elsewhere: bool = False,
    hold_s: float = 60.0,
    tells_progress: bool = False,
    write_timeout_s: float = 60.0,
    completed: Callable[[], None] = lambda: None,
) -> "asyncio.Task[None]":
    run = cast(Run, StandIn(recording, is_elsewhere=is_elsewhere))
    listener = Listener(
        run,
        client.send,
        wants_stream=wants_stream,
        is_first=False,
        schedule=KeepAliveSchedule(first_s=hold_s, every_s=hold_s, keep_alive_s=hold_s),
        tells_progress=tells_progress,
        write_timeout_s=write_timeout_s,
        fault=lambda error: sse.data(error_body(error)),
    )
    return asyncio.create_task(listener.listen(completed))


async def until(holds: Callable[[], bool]) -> None:
    """Let others go on until something is so."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0)


async def say(recording: Recording, *chunks: bytes) -> None:
    """A whole stream, the last chunk its end."""
    await recording.send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
    for chunk in chunks:
        await recording.send({"type": "http.response.body", "body": chunk, "more_body": True})


async def finish(recording: Recording) -> None:
    await recording.send({"type": "http.response.body", "body": b"", "more_body": False})
    recording.end()


async def test_who_comes_late_hears_all_of_it() -> None:
    recording, early, late = Recording(1000), Client(), Client()
    hearing = [listening(recording, early)]
    await say(recording, b"one", b"two")
    await until(lambda: early.body == b"onetwo")
    hearing.append(listening(recording, late))
    await until(lambda: late.body == b"onetwo")
    await finish(recording)
    await asyncio.gather(*hearing)

    assert recording.body == early.body == late.body
    assert early.is_whole
    assert late.is_whole
    assert late.heard[0]["headers"] == [(b"a", b"b"), (b"idempotent-replayed", b"true")]


async def test_an_answer_is_complete_before_its_run_ends() -> None:
    recording, client, completed = Recording(1000), Client(), asyncio.Event()
    hearing = listening(recording, client, completed=completed.set)
    await say(recording, b"one")
    await until(lambda: client.body == b"one")
    assert not completed.is_set()

    await recording.send({"type": "http.response.body", "body": b"", "more_body": False})
    async with asyncio.timeout(20):
        await completed.wait()

    assert client.is_whole
    recording.end()
    await hearing


async def test_a_slow_listener_holds_up_nobody() -> None:
    recording, slow, quick = Recording(1000), Client(), Client()
    hearing = [listening(recording, slow), listening(recording, quick)]
    slow.open.clear()
    await say(recording, b"one", b"two")
    await finish(recording)
    await hearing[1]

    assert (quick.body, slow.heard) == (b"onetwo", [])
    slow.open.set()
    await hearing[0]
    assert slow.body == b"onetwo"


async def test_beyond_its_bound_a_recording_forgets_and_who_is_behind_is_cut_off() -> None:
    recording, slow, quick = Recording(8), Client(), Client()
    hearing = [listening(recording, slow), listening(recording, quick)]
    await say(recording, b"1234")
    await until(lambda: slow.body == quick.body == b"1234")
    slow.open.clear()
    for chunk in (b"5678", b"9012", b"3456", b"7890"):
        recording.say(chunk, is_last=False)
        await until(lambda last=chunk: quick.body.endswith(last))  # type: ignore[misc] # mypy knows no defaults here
    await finish(recording)
    await hearing[1]
    slow.open.set()

    assert quick.body == b"12345678901234567890"
    assert recording.body is None
    with pytest.raises(ClientDisconnect):
        await hearing[0]
    assert not slow.is_whole
    with pytest.raises(ApiError, match="no longer kept"):
        await listening(recording, Client())


@pytest.mark.parametrize("chunks", [[b"123456789"], [b"1234", b"5678", b"9012"]])
async def test_a_waiting_listener_gets_an_answer_that_is_said_at_once_whatever_its_length(chunks: list[bytes]) -> None:
    recording, client = Recording(8), Client()
    hearing = listening(recording, client)
    await asyncio.sleep(0)

    await say(recording, *chunks)
    await finish(recording)
    await hearing

    assert client.body == b"".join(chunks)
    assert client.is_whole
    assert recording.body is None
    with pytest.raises(ApiError, match="no longer kept"):
        await listening(recording, Client())


async def test_a_client_that_takes_nothing_is_gone() -> None:
    recording, client = Recording(1000), Client()
    hearing = listening(recording, client, write_timeout_s=0.01)
    await say(recording, b"one")
    await until(lambda: client.body == b"one")
    client.open.clear()
    recording.say(b"two", is_last=False)

    with pytest.raises(ClientDisconnect):
        await hearing


async def test_a_refusal_is_raised_before_anything_is_said() -> None:
    recording, client = Recording(1000), Client()
    hearing = listening(recording, client)
    recording.end(ApiError("No.", "overloaded"))

    with pytest.raises(ApiError, match="No"):
        await hearing
    assert client.heard == []


async def test_comments_are_heard_only_by_who_asked_for_them() -> None:
    recording, asker, other = Recording(1000), Client(), Client()
    hearing = [listening(recording, asker, tells_progress=True), listening(recording, other)]
    said = [b": queued position=1\n\n", b"data: one\n\n: preempted\n\ndata: two\n\n", b"\n", b": paused\n\n"]
    await say(recording, *said)
    await finish(recording)
    await asyncio.gather(*hearing)

    assert asker.body == b"".join(said)
    assert other.body == b"data: one\n\ndata: two\n\n\n"


@pytest.mark.parametrize(("tells_progress", "sign"), [(True, b": running\n\n"), (False, b"\n")])
async def test_a_refusal_after_signs_of_life_is_a_frame_that_ends_the_stream(
    *, tells_progress: bool, sign: bytes
) -> None:
    recording, client = Recording(1000), Client()
    hearing = listening(recording, client, is_elsewhere=True, hold_s=0.01, tells_progress=tells_progress)
    await until(lambda: client.body.startswith(2 * sign))
    recording.end(ApiError("No.", "overloaded"))

    with pytest.raises(ApiError, match="No"):
        await hearing
    assert b'data: {"error":' in client.body
    assert b"[DONE]" not in client.body
    assert client.is_whole


@pytest.mark.parametrize("body", [b"{}", b'{"stream": false}', b"nonsense", b"[" * 100_000])
async def test_what_is_no_stream_waits_in_silence(body: bytes) -> None:
    recording, client = Recording(1000), Client()
    hearing = listening(recording, client, wants_stream=asks_for_stream(body), is_elsewhere=True, hold_s=0.001)
    for _ in range(20):
        await asyncio.sleep(0.001)  # several times as long as a stream's headers are held

    assert client.heard == []
    recording.begin(200, [])
    recording.say(b"{}", is_last=True)
    recording.end()
    await hearing
    assert client.body == b"{}"


async def never(*_: object) -> None:
    await asyncio.Event().wait()


class SilentRecords:
    """A store that never says whose a request is."""

    begin = staticmethod(never)


def begun(runs: Runs, key_id: str, number: int) -> Run:
    return runs.find(Name("acme", key_id, f"{number}"), None, "print", never, "req")[0]


def leave(run: Run) -> None:
    """Its one client has gone."""
    with run.listening():
        pass


def leave_all(runs: Sequence[Run]) -> None:
    for run in runs:
        leave(run)


def some_runs() -> Runs:
    return Runs(
        cast(IdempotencyRecords, SilentRecords()), lambda: None, grace_s=60.0, lease_s=10.0, max_answer_bytes=1_000
    )


async def test_that_a_client_leaves_costs_no_more_where_many_others_run() -> None:
    costs = []
    for count in (50, 400):
        runs = some_runs()
        all_of_them = [begun(runs, f"key-{number}", number) for number in range(count)]
        costs.append(bytecodes(partial(leave_all, all_of_them)))
        await runs.aclose(0.0)

    assert costs[1] < 12 * costs[0]


async def test_of_one_key_only_so_many_go_on_without_a_listener() -> None:
    runs = some_runs()
    all_of_them = [begun(runs, "key", number) for number in range(MOST_ABANDONED + 2)]
    leave_all(all_of_them)

    assert [run.is_given_up for run in all_of_them] == [False] * MOST_ABANDONED + [True, True]
    with all_of_them[0].listening():  # its client came again
        leave(last := begun(runs, "key", -1))
        assert not last.is_given_up
    assert all_of_them[0].is_given_up
    await runs.aclose(0.0)
    assert not runs.abandoned


@pytest.mark.parametrize("kept", [1, 5, 100])
async def test_a_listener_gets_what_it_lacks_from_any_chunk_that_is_kept(kept: int) -> None:
    chunks = [bytes([at]) for at in range(20)]
    recording = Recording(kept)
    await say(recording, *chunks)
    await asyncio.sleep(0)  # the recording drops the oldest at its next turn

    for position in range(20 + 1):
        if position < 20 - kept:
            with pytest.raises(Lost):
                recording.after(position)
        else:
            assert recording.after(position) == b"".join(chunks[position:])


async def test_a_listener_that_keeps_up_costs_the_same_however_much_is_kept() -> None:
    recording = Recording(10_000)
    await say(recording, b"a")
    first = bytecodes(lambda: recording.after(0))
    await say(recording, *[b"b"] * 1_000)

    assert bytecodes(lambda: recording.after(1_000)) == first
