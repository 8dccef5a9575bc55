"""The planner's steps out of a server's streams, beside what `test_conformance.py` asks of every kind of server."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine
from concurrent.futures import Future

import pytest

from fairlane.scheduler.planner.steps import SeqId, StepFeatures
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Sampling
from fairlane.worker.remote import runner as remote_runner
from fairlane.worker.remote import streams
from fairlane.worker.remote.api import GenerationRequest, Piece
from fairlane.worker.remote.vllm import VllmApi
from tests.support.worker.hand import lease
from tests.support.worker.remote import remote_client
from tests.support.worker.vllm_stand_in import VllmStandIn, continuation

PROMPT = (5, 6, 7, 8, 9)
FIRST = SeqId("a", 0)


def test_choices_share_a_prompt_and_go_their_own_ways() -> None:
    with VllmStandIn() as server, remote_client(server) as client:
        client.add(lease("a", PROMPT, n=3, max_tokens=5, sampling=Sampling(seed=7)))
        client.run()

        assert [client.tokens[SeqId("a", choice)] for choice in range(3)] == [continuation(PROMPT, 5)] * 3
        assert len({body["sampling_params"]["seed"] for body in server.asked}) == 3
        assert server.asked[0]["sampling_params"]["seed"] == 7


def test_a_stop_token_ends_a_choice_and_the_request_there() -> None:
    third = continuation(PROMPT, 3)[2]
    with VllmStandIn() as server, remote_client(server) as client:
        client.add(lease("a", PROMPT, max_tokens=40, sampling=Sampling(stop_token_ids=(third,))))
        client.run()

        assert client.tokens[FIRST] == continuation(PROMPT, 3)
        assert server.produced == 3


def test_a_job_goes_on_from_what_others_have_published() -> None:
    so_far = tuple(continuation(PROMPT, 4))
    with VllmStandIn() as server, remote_client(server) as client:
        client.add(lease("a", PROMPT, max_tokens=9, generated=(so_far,)))
        client.run()

        assert [body["token_ids"] for body in server.asked] == [[*PROMPT, *so_far]]
        assert client.tokens[FIRST] == continuation(PROMPT, 9)


def test_a_prompt_that_was_asked_for_gives_its_place_at_the_server_to_a_higher_lane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_runner, "PATIENCE_S", 0.001)
    monkeypatch.setattr(remote_runner, "UNPLANNED", 10**9)
    with VllmStandIn(step_s=3_600.0, slots=2) as server, remote_client(server, max_sequences=2) as client:
        client.add(*[lease(name, PROMPT, lane=LaneName.THROUGHPUT) for name in "ab"])
        client.until(lambda: server.most_running == 2)
        client.add(lease("chat", PROMPT))
        client.until(lambda: len(server.asked) == 3 and server.aborted)

        assert server.asked[-1]["request_id"].startswith("test-chat-")
        assert len({name.removeprefix("generate-tokens-") for name in server.aborted}) == 1


def test_decode_steps_are_learnt_from_when_their_tokens_arrive() -> None:
    with VllmStandIn(step_s=0.02) as server, remote_client(server) as client:
        client.add(lease("a", PROMPT, max_tokens=60))
        client.run()

        assert client.costs.single_stream_ms >= 20.0


def test_steps_that_take_longer_than_one_here_waits_are_learnt_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts among them: else nobody knows what a loaded server can promise."""
    monkeypatch.setattr(remote_runner, "PATIENCE_S", 0.005)
    with VllmStandIn(step_s=0.02) as server, remote_client(server) as client:
        client.add(lease("a", PROMPT, max_tokens=20))
        client.run()
        assert client.costs.single_stream_ms >= 20.0

        seen: list[StepFeatures] = []
        monkeypatch.setattr(client.costs, "observe", lambda plan, *_: seen.append(plan))
        client.add(lease("b", PROMPT, max_tokens=2))
        client.run()
        assert [plan.prefill_tokens for plan in seen] == [len(PROMPT), 0]


class BusyLibrary(VllmApi):
    """Begins a task of its own just before the streams end theirs."""

    def __init__(self, url: str) -> None:
        super().__init__(url, None)
        self.is_asked, self.is_closing, self.started = threading.Event(), threading.Event(), 0

    async def generate(self, ask: GenerationRequest) -> AsyncGenerator[Piece, None]:
        self.is_asked.set()
        self.is_closing.wait(streams.CLOSE_S)
        await asyncio.sleep(0)
        self.task = asyncio.create_task(self._start())
        await asyncio.sleep(60)
        yield Piece()

    async def _start(self) -> None:
        self.started += 1


def test_closing_leaves_the_tasks_of_a_library_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is cancelled before it begins cannot end what it holds: anyio's coroutines are never awaited then."""
    begin_closing = asyncio.run_coroutine_threadsafe
    with VllmStandIn() as server:
        api = BusyLibrary(server.url)
        busy = streams.Streams(api, vocab_size=97)

        def told(coroutine: Coroutine[None, None, None], loop: asyncio.AbstractEventLoop) -> Future[None]:
            begun = begin_closing(coroutine, loop)
            api.is_closing.set()
            return begun

        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", told)
        busy.open(FIRST, GenerationRequest("a", PROMPT, 4, Sampling(), 0, ""))
        assert api.is_asked.wait(streams.CLOSE_S)
        busy.close()

        assert api.started == 1
