"""The prefix cache under the real arithmetic: token for token the same, and never a poisoned block."""

import random
from collections.abc import Iterator

import pytest
import torch

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.messages import Outcome, Sampling
from fairlane.worker.engine.build import planner_for
from fairlane.worker.engine.engine import Engine
from fairlane.worker.model.reference import TransformersModel
from tests.support.worker.hand import lease
from tests.support.worker.prompts import PROMPTS, alone
from tests.support.worker.stepped import Client

LONG = PROMPTS[4]


class Caching(Client):
    """An engine that keeps prefixes."""

    def __init__(self, model: TransformersModel, *, blocks: int = 64) -> None:
        super().__init__(model, blocks=blocks)
        planner = planner_for(self.cache, CostModel(), max_sequences=8, max_step_tokens=24, prefix_share=0.5)
        self.engine = Engine(planner, self.engine.runner)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("blocks", [64, 26])
def test_hits_change_no_token_whatever_is_preempted_between(tiny: TransformersModel, blocks: int, seed: int) -> None:
    chooser = random.Random(seed)
    client = Caching(tiny, blocks=blocks)
    prompts = [[*LONG[: chooser.randrange(5, len(LONG))], chooser.randrange(97)] for _ in range(12)]

    def disturb(number: int) -> None:
        if number % 2 == 0 and number // 2 < len(prompts):
            client.add(lease(str(number // 2), prompts[number // 2], max_tokens=8))
        for job_id in client.engine.planner.job_ids():
            if chooser.random() < 0.15:
                client.engine.planner.preempt(SeqId(job_id, 0), chooser.choice(("swap", "recompute")))

    client.add(lease("first", LONG, max_tokens=4))
    client.run(disturb)

    assert [alone(tiny, prompt, 8) for prompt in prompts] == [client.tokens[SeqId(str(i), 0)] for i in range(12)]
    assert sum(end.cached_tokens for end in client.ended.values()) > 100


def test_sampling_goes_on_as_if_all_had_been_computed(tiny: TransformersModel) -> None:
    sampling = Sampling(seed=3, frequency_penalty=0.4, repetition_penalty=1.2)
    client = Caching(tiny)
    for job_id in ("cold", "warm"):
        client.add(lease(job_id, LONG, max_tokens=12, n=2, sampling=sampling))
        client.run()

    assert client.ended["warm"].cached_tokens == 36
    told = [(delta.choice, delta.first_index) for delta in client.deltas if delta.cached_tokens == 36]
    assert told == [(0, 0), (1, 0)], "with the first token of each choice"
    for choice in range(2):
        assert client.tokens[SeqId("cold", choice)] == client.tokens[SeqId("warm", choice)]


@pytest.fixture
def poison(tiny: TransformersModel) -> Iterator[TransformersModel]:
    """Token 96 becomes NaN in the model's very first layer."""

    def spoil(_: object, args: tuple[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        return out.masked_fill((args[0] == 96)[..., None], float("nan"))

    hook = tiny.causal_lm.get_input_embeddings().register_forward_hook(spoil)
    yield tiny
    hook.remove()


def test_what_a_poisoned_request_computed_is_never_found(poison: TransformersModel) -> None:
    """Its NaNs are in a chunk that nothing is sampled from."""
    client = Caching(poison)
    client.add(lease("bad", [96, *LONG], max_tokens=4))
    client.run()
    assert client.ended["bad"].outcome is Outcome.FAILED
    assert client.engine.planner.blocks_cached == 0

    client.add(lease("good", LONG, max_tokens=4))
    client.run()
    client.add(lease("again", [*LONG[:20], 96, *LONG], max_tokens=4))
    client.run()
    client.add(lease("better", [*LONG[:20], 7, *LONG], max_tokens=1))
    client.run()

    assert client.ended["again"].outcome is Outcome.FAILED
    assert client.ended["better"].cached_tokens == 20
    assert client.tokens[SeqId("better", 0)] == alone(poison, [*LONG[:20], 7, *LONG], 1)


def test_a_hit_leaves_shared_blocks_as_they_were(tiny: TransformersModel) -> None:
    client = Caching(tiny)
    client.add(lease("a", LONG, max_tokens=2))
    client.run()
    held = client.cache.pool.clone()
    client.add(lease("b", [*LONG[:16], *PROMPTS[3]], max_tokens=2))
    shared = client.step().plan.rows[0].block_table[:4]

    client.run()

    assert all(bool((client.cache.pool[block] == held[block]).all()) for block in shared)
