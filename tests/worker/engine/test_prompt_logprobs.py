"""Log-probabilities of prompts: those of transformers' own logits, however the prompt is cut, preempted or shared."""

import random
from collections.abc import Sequence

import pytest
import torch

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.messages import Lease, Outcome, PositionLogprobs, PromptLogprobs, Sampling
from fairlane.worker.engine import prompt_logprobs
from fairlane.worker.engine.build import planner_for
from fairlane.worker.engine.engine import Engine
from fairlane.worker.engine.runner import Runner
from fairlane.worker.model.interface import Output
from fairlane.worker.model.native import NativeModel
from fairlane.worker.model.reference import TransformersModel
from fairlane.worker.native.library import is_compiled
from tests.support.worker.hand import lease
from tests.support.worker.prompts import PROMPTS, alone
from tests.support.worker.stepped import Client

LONG = PROMPTS[4]
MOST = 3
NEEDS_COMPILER = pytest.mark.skipif(not is_compiled(), reason="no compiler")


class Scoring(Client):
    """An engine with a prefix cache, whose forward passes return few positions."""

    def __init__(self, model: TransformersModel | NativeModel, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(prompt_logprobs, "_LOGITS_BYTES", 0)
        monkeypatch.setattr(prompt_logprobs, "_LEAST_POSITIONS", 7)
        super().__init__(model)  # type: ignore[arg-type]
        planner = planner_for(self.cache, CostModel(), max_sequences=8, max_step_tokens=24, prefix_share=0.5)
        self.engine = Engine(planner, Runner(model, self.cache))

    def scored(self, job_id: str) -> list[PositionLogprobs]:
        """All log-probabilities of a prompt, which arrived in order."""
        found: list[PositionLogprobs] = []
        for event in self.events:
            if isinstance(event, PromptLogprobs) and event.job_id == job_id:
                assert event.first == 1 + len(found)
                found += event.logprobs
        return found


def asked(job_id: str, prompt: Sequence[int], *, most: int = MOST, n: int = 1, generated: Sequence[int] = ()) -> Lease:
    sampling = Sampling(temperature=0.0, prompt_logprobs=most)
    return lease(job_id, prompt, sampling=sampling, max_tokens=4, n=n, generated=(tuple(generated),))


def expected(model: TransformersModel, prompt: list[int]) -> list[torch.Tensor]:
    """The model's own distribution at each position that precedes a prompt token."""
    return [model.plain_logits(prompt[:end]).float().log_softmax(-1) for end in range(1, len(prompt))]


def check(model: TransformersModel, prompt: list[int], found: list[PositionLogprobs], most: int = MOST) -> None:
    tables = expected(model, prompt)
    assert len(found) == len(tables)
    for token, one, table in zip(prompt[1:], found, tables, strict=True):
        best = table.topk(most)
        assert one.logprob == pytest.approx(float(table[token]), abs=1e-4)
        assert [other for other, _ in one.top] == best.indices.tolist()
        assert [logprob for _, logprob in one.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert one.rank == 1 + int((table > table[token]).sum())


@pytest.mark.parametrize("is_native", [False, pytest.param(True, marks=NEEDS_COMPILER)])
def test_they_are_those_of_the_models_own_logits(
    tiny: TransformersModel, monkeypatch: pytest.MonkeyPatch, is_native: bool
) -> None:
    compiled = NativeModel(tiny.name, tiny.causal_lm, tiny.shape, context_length=96) if is_native else None
    client = Scoring(compiled or tiny, monkeypatch)
    for number, prompt in enumerate(PROMPTS):
        client.add(asked(f"asked {number}", prompt))
        client.add(lease(f"plain {number}", prompt, max_tokens=4))

    client.run()

    for number, prompt in enumerate(PROMPTS):
        check(tiny, prompt, client.scored(f"asked {number}"))
        assert client.scored(f"plain {number}") == []
        for kind in ("asked", "plain"):
            assert client.tokens[SeqId(f"{kind} {number}", 0)] == alone(tiny, prompt, 4)


def test_all_precede_the_first_token_and_come_once(tiny: TransformersModel, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Scoring(tiny, monkeypatch)
    client.add(asked("a", LONG, n=3))
    client.add(asked("short", PROMPTS[1], n=3, most=0))

    client.run()

    check(tiny, LONG, client.scored("a"))
    assert [one.top for one in client.scored("short")] == [(), ()]
    for job_id in ("a", "short"):
        kinds = [type(event) for event in client.events if getattr(event, "job_id", "") == job_id]
        assert PromptLogprobs not in kinds[kinds.count(PromptLogprobs) :]


def test_a_cached_prompt_is_computed_again(tiny: TransformersModel, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Scoring(tiny, monkeypatch)
    for job_id in ("first", "again"):
        client.add(asked(job_id, LONG))
        client.run()
        check(tiny, LONG, client.scored(job_id))
        assert client.ended[job_id].cached_tokens == 0

    client.add(lease("plain", LONG, max_tokens=4))
    client.run()
    assert client.ended["plain"].cached_tokens > 0


@pytest.mark.parametrize("seed", range(3))
def test_preemption_changes_none_and_repeats_none(
    tiny: TransformersModel, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chooser = random.Random(seed)
    client = Scoring(tiny, monkeypatch)
    for number, prompt in enumerate(PROMPTS):
        client.add(asked(str(number), prompt))

    def disturb(_: int) -> None:
        for job_id in client.engine.planner.job_ids():
            if chooser.random() < 0.3:
                client.engine.planner.preempt(SeqId(job_id, 0), chooser.choice(("swap", "recompute")))

    client.run(disturb)

    for number, prompt in enumerate(PROMPTS):
        check(tiny, prompt, client.scored(str(number)))
        assert client.tokens[SeqId(str(number), 0)] == alone(tiny, prompt, 4)


def test_another_worker_repeats_none_once_there_is_a_token(
    tiny: TransformersModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, client = alone(tiny, LONG, 4), Scoring(tiny, monkeypatch)
    client.add(asked("resumed", LONG, generated=whole[:1]))
    client.tokens[SeqId("resumed", 0)] = whole[:1]

    client.run()

    assert client.scored("resumed") == []
    assert client.tokens[SeqId("resumed", 0)] == whole


def test_a_pass_that_fails_fails_the_faulty_prompt_alone(
    tiny: TransformersModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, forward = Scoring(tiny, monkeypatch), tiny.forward

    def broken(packed: object, cache: object) -> Output:
        if 96 in packed.token_ids:  # type: ignore[attr-defined]
            raise RuntimeError("out of memory")
        return forward(packed, cache)  # type: ignore[arg-type]

    monkeypatch.setattr(tiny, "forward", broken)
    client.add(asked("bad", [1, 96, 2]))
    client.add(asked("good", PROMPTS[1]))
    client.run()
    monkeypatch.undo()

    assert client.ended["bad"].outcome is Outcome.FAILED
    check(tiny, PROMPTS[1], client.scored("good"))
