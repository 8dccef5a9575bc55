"""What every kind of server has to come to, whatever it speaks: each token once, budgets exact, no belief in it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import pytest

from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import (
    Cause,
    Lease,
    Outcome,
    Paused,
    Preempted,
    PromptLogprobs,
    Sampling,
    TokenDelta,
)
from fairlane.worker.errors import EngineError
from fairlane.worker.remote import monitor, streams
from fairlane.worker.remote import runner as remote_runner
from fairlane.worker.remote.api import Api
from fairlane.worker.remote.openai import OpenAiApi
from fairlane.worker.remote.sglang import SglangApi
from fairlane.worker.remote.vllm import VllmApi
from tests.support.worker.hand import lease
from tests.support.worker.openai_stand_in import OpenAiStandIn, card
from tests.support.worker.remote import facts_of, remote_client
from tests.support.worker.sglang_stand_in import SglangStandIn
from tests.support.worker.vllm_stand_in import EOS, VllmStandIn, continuation

PROMPT = (5, 6, 7, 8, 9)
FIRST = SeqId("a", 0)


@dataclass(frozen=True)
class Kind:
    """A kind of server, and what speaks to it."""

    serve: Callable[[], VllmStandIn]
    speak: Callable[[str, str | None], Api]
    says_ids: bool = True
    lies: tuple[str, ...] = ("vocabulary", "count", "missing", "repeated", "short", "cut", "garbled", "silent")
    """Those that can be seen."""

    def api(self, server: VllmStandIn) -> Api:
        """Once the facts are found."""
        api = self.speak(server.url, None)
        facts_of(api)
        return api.serving(card())


ALL_OF_TEXT = ("short", "cut", "garbled", "silent")
KINDS = {
    "vllm": Kind(VllmStandIn, VllmApi),
    "sglang": Kind(
        SglangStandIn, SglangApi, lies=("vocabulary", "count", "short", "cut", "garbled", "silent")
    ),  # a chunk has all tokens so far: one that is missing, or comes twice, changes nothing
    "sglang-incremental": Kind(lambda: SglangStandIn(is_incremental=True), SglangApi),
    "openai-ids": Kind(OpenAiStandIn, OpenAiApi),
    "openai-llama": Kind(lambda: OpenAiStandIn(owner="llamacpp"), OpenAiApi, says_ids=False, lies=ALL_OF_TEXT),
    "openai-text": Kind(lambda: OpenAiStandIn(owner="strict"), OpenAiApi, says_ids=False, lies=ALL_OF_TEXT),
}


THOROUGH = ("sglang", "openai-ids", "openai-llama")


def marks_of(name: str) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.thorough,) if name in THOROUGH else ()


@pytest.fixture(params=[pytest.param(name, marks=marks_of(name)) for name in KINDS])
def kind(request: pytest.FixtureRequest) -> Kind:
    """One after another."""
    return KINDS[request.param]


@pytest.fixture(autouse=True)
def quick_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten how long a step waits for a token that does not come: a server's silence and errors take several."""
    monkeypatch.setattr(remote_runner, "PATIENCE_S", 0.01)


def granted(one: Lease, tokens: int) -> Lease:
    return msgspec.structs.replace(one, job=msgspec.structs.replace(one.job, granted_until=tokens))


def test_many_streams_are_whole(kind: Kind) -> None:
    with kind.serve() as server, remote_client(server, api=kind.api(server)) as client:
        prompts = {f"job{number}": [number + 3] * (number + 1) for number in range(20)}
        client.add(*(lease(name, prompt, max_tokens=12) for name, prompt in prompts.items()))
        client.run()

        assert {name: client.tokens[SeqId(name, 0)] for name in prompts} == {
            name: continuation(prompt, 12) for name, prompt in prompts.items()
        }
        assert {ended.outcome for ended in client.ends.values()} == {Outcome.FINISHED}
        assert server.most_running <= 8
        assert server.aborted == []


@pytest.mark.parametrize("n", [1, 2])
def test_log_probabilities_of_a_prompt_precede_its_tokens_and_come_once(kind: Kind, n: int) -> None:
    if not kind.says_ids:
        pytest.skip("refused by the gateway")
    sampling = Sampling(temperature=0.0, prompt_logprobs=2, logprobs=1)
    with kind.serve() as server, remote_client(server, api=kind.api(server)) as client:
        client.add(lease("a", PROMPT, max_tokens=3, n=n, sampling=sampling), lease("b", PROMPT, max_tokens=3))
        client.run()

        [found] = [event for event in client.events if isinstance(event, PromptLogprobs)]
        assert (found.job_id, found.first) == ("a", 1)
        assert [one.logprob for one in found.logprobs] == [-0.5] * 4
        assert [one.top for one in found.logprobs] == [((token, -0.5), (0, -1.0)) for token in PROMPT[1:]]
        events = [event for event in client.events if getattr(event, "job_id", "") == "a"]
        assert events.index(found) < min(i for i, event in enumerate(events) if isinstance(event, TokenDelta))
        assert client.tokens[FIRST] == continuation(PROMPT, 3)


def test_log_probabilities_of_a_prompt_are_not_asked_for_again(kind: Kind) -> None:
    sampling, begun = Sampling(temperature=0.0, prompt_logprobs=2), tuple(continuation(PROMPT, 1))
    with kind.serve() as server, remote_client(server, api=kind.api(server)) as client:
        client.add(lease("a", PROMPT, max_tokens=3, sampling=sampling, generated=(begun,)))
        client.run()

        assert [event for event in client.events if isinstance(event, PromptLogprobs)] == []
        assert (client.tokens[FIRST], len(server.asked)) == (continuation(PROMPT, 3), 1)


def test_a_server_that_leaves_them_out_fails_the_request(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kind.says_ids:
        pytest.skip("refused by the gateway")
    monkeypatch.setattr(remote_runner, "RETRY_S", 0.01)
    with kind.serve() as server, remote_client(server, api=kind.api(server)) as client:
        server.lies = "unscored"
        client.add(lease("a", PROMPT, max_tokens=3, sampling=Sampling(temperature=0.0, prompt_logprobs=0)))
        client.run()

        assert client.ends["a"].outcome is Outcome.FAILED
        assert client.tokens[FIRST] == []


def test_nothing_is_told_beyond_a_grant_and_a_further_grant_goes_on_from_there(kind: Kind) -> None:
    with kind.serve() as server, remote_client(server, api=kind.api(server)) as client:
        client.add(granted(lease("a", PROMPT, max_tokens=12), 5))
        client.until(lambda: any(isinstance(event, Paused) for event in client.events))
        assert client.tokens[FIRST] == continuation(PROMPT, 5)

        client.engine.grant("a", 12)
        client.run()

        assert client.tokens[FIRST] == continuation(PROMPT, 12)
        assert len(server.asked) == 2


def test_a_lane_above_takes_the_place_of_one_below_which_goes_on_after_it(kind: Kind) -> None:
    with kind.serve() as server, remote_client(server, api=kind.api(server), max_sequences=2) as client:
        server.step_s, server.slots = 0.005, 2
        below = [
            lease(name, [number] * 6, max_tokens=60, lane=LaneName.THROUGHPUT) for number, name in enumerate("ab", 3)
        ]
        client.add(*below)
        client.until(lambda: len(client.tokens) == 2)
        client.add(lease("urgent", PROMPT, max_tokens=3))
        client.until(lambda: "urgent" in client.ends)
        assert not {"a", "b"} & client.ends.keys()
        client.run()

        causes = [event.cause for event in client.events if isinstance(event, Preempted)]
        assert set(causes) == {Cause(resource="slots", lane=LaneName.LATENCY, tenant="tenant", job_id="urgent")}
        steps = client.ends["urgent"].steps
        assert steps is not None
        assert (steps.prefill_tokens, steps.decode_steps) == (len(PROMPT), 2)
        assert client.tokens[SeqId("urgent", 0)] == continuation(PROMPT, 3)
        assert [client.tokens[SeqId(one.job.job_id, 0)] for one in below] == [
            continuation(one.job.prompt, 60) for one in below
        ]


def test_a_cancelled_job_ends_at_the_server_too(kind: Kind) -> None:
    with kind.serve() as server, remote_client(server, api=kind.api(server)) as client:
        server.step_s = 0.01
        client.add(lease("a", PROMPT, max_tokens=200), lease("b", PROMPT, max_tokens=20))
        client.until(lambda: len(client.tokens[FIRST]) >= 2)
        ended = client.engine.cancel("a")
        client.run()

        assert ended is not None
        assert ended.outcome is Outcome.CANCELLED
        assert client.tokens[SeqId("b", 0)] == continuation(PROMPT, 20)
        client.until(lambda: server.aborted)


def test_an_end_of_sequence_ends_a_choice(kind: Kind) -> None:
    """Told as a token, as our own engine tells it."""
    with kind.serve() as server, remote_client(server, api=kind.api(server)) as client:
        server.ends_after = 4
        client.add(lease("a", PROMPT, max_tokens=40, sampling=Sampling(stop_token_ids=(EOS,))))
        client.run()

        assert client.tokens[FIRST] == [*continuation(PROMPT, 3), EOS]
        assert client.ends["a"].outcome is Outcome.FINISHED


def test_a_server_that_says_more_than_was_asked_for_is_not_heard(kind: Kind) -> None:
    with kind.serve() as server, remote_client(server, api=kind.api(server)) as client:
        server.lies = "many"
        client.add(lease("a", PROMPT, max_tokens=6))
        client.run()

        assert client.tokens[FIRST] == continuation(PROMPT, 6)
        assert client.ends["a"].outcome is Outcome.FINISHED


@pytest.mark.parametrize(
    ("name", "lie"),
    [pytest.param(name, lie, marks=marks_of(name)) for name, kind in KINDS.items() for lie in kind.lies],
)
def test_a_stream_that_goes_wrong_is_begun_again_from_its_last_good_token(
    name: str, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STALL_S", 0.3)
    monkeypatch.setattr(remote_runner, "RETRY_S", 0.01)
    with KINDS[name].serve() as server, remote_client(server, api=KINDS[name].api(server)) as client:
        server.lies, server.lies_left = lie, 1
        client.add(lease("a", PROMPT, max_tokens=8))
        client.run()

        assert client.tokens[FIRST] == continuation(PROMPT, 8)
        assert client.ends["a"].outcome is Outcome.FINISHED
        assert len(server.asked) == 2


@pytest.mark.parametrize("lie", ["missing", "repeated"])
def test_chunks_that_hold_all_tokens_so_far_make_up_for_others(lie: str) -> None:
    with SglangStandIn(lies=lie) as server, remote_client(server, api=SglangApi(server.url, None)) as client:
        server.lies_left = 2
        client.add(lease("a", PROMPT, max_tokens=8), lease("b", PROMPT, max_tokens=1))
        client.run()

        assert client.tokens[FIRST] == continuation(PROMPT, 8)
        assert len(server.asked) == 2


def test_a_server_that_never_mends_fails_the_job_with_one_clear_error(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_runner, "RETRY_S", 0.01)
    with kind.serve() as server, remote_client(server, api=kind.api(server)) as client:
        server.refuses = 500
        client.add(lease("a", PROMPT, max_tokens=8))
        client.run()

        assert (client.ends["a"].outcome, client.ends["a"].error) == (Outcome.FAILED, remote_runner.FAILED)
        assert len(server.asked) == remote_runner.MOST_TRIES


def test_what_the_server_refuses_is_not_asked_twice(kind: Kind) -> None:
    with kind.serve() as server, remote_client(server, api=kind.api(server)) as client:
        server.refuses = 400
        client.add(lease("a", PROMPT, max_tokens=8))
        client.run()

        assert client.ends["a"].error == "the engine refused it with status 400"
        assert len(server.asked) == 1


def test_a_server_that_restarts_goes_on_with_every_stream(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tries would fit into the time that it is away."""
    monkeypatch.setattr(remote_runner, "RETRY_S", 0.001)
    monkeypatch.setattr(monitor, "GONE_S", 0.3)
    monkeypatch.setattr(monitor, "LOOK_S", 0.02)
    told: list[bool] = []
    with kind.serve() as server, remote_client(server, api=kind.api(server)) as client:
        server.lies = "silent"
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


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=marks_of(name)) for name, kind in KINDS.items() if kind.says_ids]
)
def test_log_probabilities_and_what_the_servers_cache_had_come_through(name: str) -> None:
    with KINDS[name].serve() as server, remote_client(server, api=KINDS[name].api(server)) as client:
        client.add(lease("a", PROMPT, max_tokens=3, sampling=Sampling(temperature=0.0, logprobs=2)))
        client.run()

        deltas = [event for event in client.events if isinstance(event, TokenDelta)]
        assert sorted([delta.cached_tokens for delta in deltas]) == [0, 0, len(PROMPT) // 2]
        assert client.ends["a"].cached_tokens == len(PROMPT) // 2
        assert [[one.logprob for one in delta.logprobs] for delta in deltas] == [[-0.5]] * 3
        assert [[one.top for one in delta.logprobs] for delta in deltas] == [[((0, -1.0), (1, -2.0))]] * 3


@pytest.mark.parametrize("name", ["sglang", "openai-ids", "openai-text"])
def test_a_server_that_has_another_model_now_is_not_up_and_says_why(name: str) -> None:
    with KINDS[name].serve() as server:
        api = KINDS[name].api(server)

        async def looked() -> bool:
            was_up = await api.is_up()
            server.model = "other"
            with pytest.raises(EngineError, match=r"^engine_"):
                await api.is_up()
            await api.close()
            return was_up

        assert asyncio.run(looked())


def test_a_key_that_it_does_not_take_stops_the_start(kind: Kind) -> None:
    with kind.serve() as server:
        server.key = "right"
        with pytest.raises(EngineError, match=r"^engine_key: the server rejects it$"):
            facts_of(kind.speak(server.url, "wrong"))
        assert facts_of(kind.speak(server.url, "right")).model


def test_a_server_of_another_kind_is_refused_by_name() -> None:
    with VllmStandIn() as vllm, SglangStandIn() as sglang:
        with pytest.raises(EngineError, match=r"^engine_url: no SGLang: /get_server_info has status 404$"):
            facts_of(SglangApi(vllm.url, None))
        with pytest.raises(EngineError, match=r"^engine_url: no vLLM: /version has status 404$"):
            facts_of(VllmApi(sglang.url, None))
        with pytest.raises(EngineError, match=r"^engine_url: no completions: /v1/completions has status 404$"):
            facts_of(OpenAiApi(sglang.url, None))
