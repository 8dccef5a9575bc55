"""The planner's steps out of a server's streams: each token once, nothing beyond a grant, no belief in the server."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine
from concurrent.futures import Future

import msgspec
import pytest

from fairlane.scheduler.planner.steps import SeqId, StepFeatures
from fairlane.scheduler.protocol import engine_priority
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Lease, Outcome, Paused, Preempted, Sampling, TokenDelta
from fairlane.worker.remote import runner as remote_runner
from fairlane.worker.remote import streams
from fairlane.worker.remote.api import Ask, Piece
from fairlane.worker.remote.vllm import VllmApi
from tests.support.worker.hand import lease
from tests.support.worker.remote import remote_client
from tests.support.worker.vllm_stand_in import VllmStandIn, continuation

PROMPT = (5, 6, 7, 8, 9)
FIRST = SeqId("a", 0)


def granted(one: Lease, tokens: int) -> Lease:
    return msgspec.structs.replace(one, job=msgspec.structs.replace(one.job, granted_until=tokens))


def test_many_jobs_get_what_the_server_says_each_token_once() -> None:
    with VllmStandIn() as server, remote_client(server) as client:
        prompts = {f"job{number}": [number + 3] * (number + 1) for number in range(20)}
        client.add(*(lease(name, prompt, max_tokens=12) for name, prompt in prompts.items()))
        client.run()

        assert {name: client.tokens[SeqId(name, 0)] for name in prompts} == {
            name: continuation(prompt, 12) for name, prompt in prompts.items()
        }
        assert {ended.outcome for ended in client.ends.values()} == {Outcome.FINISHED}
        assert server.most_running <= 8
        assert server.aborted == []


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


def test_nothing_is_told_beyond_a_grant_and_a_further_grant_goes_on_from_there() -> None:
    with VllmStandIn() as server, remote_client(server) as client:
        client.add(granted(lease("a", PROMPT, max_tokens=12), 5))
        client.until(lambda: any(isinstance(event, Paused) for event in client.events))
        assert client.tokens[FIRST] == continuation(PROMPT, 5)

        client.engine.grant("a", 12)
        client.run()

        assert client.tokens[FIRST] == continuation(PROMPT, 12)
        assert [len(body["token_ids"]) for body in server.asked] == [5, 10]


def test_a_job_goes_on_from_what_others_have_published() -> None:
    so_far = tuple(continuation(PROMPT, 4))
    with VllmStandIn() as server, remote_client(server) as client:
        client.add(lease("a", PROMPT, max_tokens=9, generated=(so_far,)))
        client.run()

        assert [body["token_ids"] for body in server.asked] == [[*PROMPT, *so_far]]
        assert client.tokens[FIRST] == continuation(PROMPT, 9)


def test_a_cancelled_job_ends_at_the_server_too() -> None:
    with VllmStandIn(step_s=0.02) as server, remote_client(server) as client:
        client.add(lease("a", PROMPT, max_tokens=200), lease("b", PROMPT, max_tokens=40))
        client.until(lambda: len(client.tokens[FIRST]) >= 2)
        ended = client.engine.cancel("a")
        client.run()

        assert ended is not None
        assert ended.outcome is Outcome.CANCELLED
        assert any(request_id.endswith("a-0-1") for request_id in server.aborted)
        assert client.tokens[SeqId("b", 0)] == continuation(PROMPT, 40)


def test_a_lane_above_takes_the_place_of_one_below_which_goes_on_after_it() -> None:
    with VllmStandIn(step_s=0.005, slots=2) as server, remote_client(server, max_sequences=2) as client:
        below = [
            lease(name, [number] * 6, max_tokens=60, lane=LaneName.THROUGHPUT) for number, name in enumerate("ab", 3)
        ]
        client.add(*below)
        client.until(lambda: len(client.tokens) == 2)
        client.add(lease("urgent", PROMPT, max_tokens=3))
        client.until(lambda: "urgent" in client.ends)
        assert not {"a", "b"} & client.ends.keys()
        client.run()

        assert any(isinstance(event, Preempted) for event in client.events)
        assert client.tokens[SeqId("urgent", 0)] == continuation(PROMPT, 3)
        assert [client.tokens[SeqId(one.job.job_id, 0)] for one in below] == [
            continuation(one.job.prompt, 60) for one in below
        ]


def test_what_orders_and_what_divides_tenants_is_told_to_the_server() -> None:
    with VllmStandIn() as server, remote_client(server) as client:
        jobs = [lease("a", PROMPT, max_tokens=2), lease("b", PROMPT, max_tokens=2, lane=LaneName.THROUGHPUT)]
        other = msgspec.structs.replace(jobs[0].job, job_id="c", tenant="other")
        client.add(*jobs, msgspec.structs.replace(jobs[0], job=other))
        client.run()

        by_job = {body["request_id"].split("-")[1]: body for body in server.asked}
        ranks = [engine_priority.decode(by_job[name]["priority"]) for name in "ab"]
        assert [one.lane_rank for one in ranks if one is not None] == [0, 1]
        assert by_job["a"]["cache_salt"] == by_job["b"]["cache_salt"] != by_job["c"]["cache_salt"]
        assert "tenant" not in by_job["a"]["cache_salt"]


def test_what_the_servers_cache_had_and_log_probabilities_come_through() -> None:
    with VllmStandIn() as server, remote_client(server) as client:
        client.add(lease("a", PROMPT, max_tokens=2, sampling=Sampling(temperature=0.0, logprobs=2)))
        client.run()

        deltas = [event for event in client.events if isinstance(event, TokenDelta)]
        assert [delta.cached_tokens for delta in deltas] == [0, len(PROMPT) // 2]
        assert [[len(one.top) for one in delta.logprobs] for delta in deltas] == [[2], [2]]
        assert client.ends["a"].cached_tokens == len(PROMPT) // 2


@pytest.mark.parametrize("lie", ["vocabulary", "count", "short", "cut", "garbled", "silent"])
def test_a_stream_that_goes_wrong_is_begun_again_from_its_last_good_token(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STALL_S", 0.3)
    monkeypatch.setattr(remote_runner, "RETRY_S", 0.01)
    with VllmStandIn(lies=lie, lies_left=1) as server, remote_client(server) as client:
        client.add(lease("a", PROMPT, max_tokens=8))
        client.run()

        assert client.tokens[FIRST] == continuation(PROMPT, 8)
        assert client.ends["a"].outcome is Outcome.FINISHED
        assert len(server.asked) == 2


def test_a_server_that_never_mends_fails_the_job_with_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_runner, "RETRY_S", 0.01)
    with VllmStandIn(refuses=500) as server, remote_client(server) as client:
        client.add(lease("a", PROMPT, max_tokens=8))
        client.run()

        assert (client.ends["a"].outcome, client.ends["a"].error) == (Outcome.FAILED, remote_runner.FAILED)
        assert len(server.asked) == remote_runner.MOST_TRIES


def test_what_the_server_refuses_is_not_asked_twice() -> None:
    with VllmStandIn(refuses=400) as server, remote_client(server) as client:
        client.add(lease("a", PROMPT, max_tokens=8))
        client.run()

        assert client.ends["a"].error == "the engine refused it with status 400"
        assert len(server.asked) == 1


def test_a_server_that_restarts_goes_on_with_every_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tries would fit into the time that it is away."""
    monkeypatch.setattr(remote_runner, "RETRY_S", 0.001)
    told: list[bool] = []
    monkeypatch.setattr(streams, "GONE_S", 0.3)
    monkeypatch.setattr(streams, "LOOK_S", 0.02)
    with VllmStandIn(lies="silent") as server, remote_client(server) as client:
        client.streams.watch(told.append)
        client.add(*(lease(name, [number] * 5, max_tokens=40) for number, name in enumerate("abc", 3)))
        client.until(lambda: [len(tokens) for tokens in client.tokens.values()] == [2, 2, 2])
        server.stop()
        client.until(lambda: told == [False])
        server.lies = None
        server.start()
        client.run()

        assert [client.tokens[SeqId(name, 0)] for name in "abc"] == [
            continuation([number] * 5, 40) for number in (3, 4, 5)
        ]
        assert told == [False, True]


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

    async def generate(self, ask: Ask) -> AsyncGenerator[Piece, None]:
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
        busy.open(FIRST, Ask("a", PROMPT, 4, Sampling(), 0, ""))
        assert api.is_asked.wait(streams.CLOSE_S)
        busy.close()

        assert api.started == 1
