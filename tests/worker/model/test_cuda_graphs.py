"""Decode steps in buckets: what is captured once serves every step that fits, and rows that fill up leave no trace.

Without a GPU a "graph" here is the computation itself, on the same tensors that stay: all but the capture is real.
"""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import transformers

from fairlane.worker.engine.runner import Runner
from fairlane.worker.model.cuda_graphs import DecodeGraphs, Replay, bucket_sizes, with_graphs
from fairlane.worker.model.fused import FusedModel
from fairlane.worker.model.interface import Output
from fairlane.worker.model.reference import TransformersModel
from tests.support.worker.hand import Hand, Line, lease
from tests.support.worker.random_models import GROUPED, random_model

PROMPTS = [[7, 3, 9], [5], [11, 2, 2, 8, 1, 30, 4], [60, 61], [13] * 5]


class Recorded:
    """Stands for capturing: remembers how many rows each computation has, and when it is repeated."""

    def __init__(self) -> None:
        self.replays: list[int] = []

    def __call__(self, compute: Replay) -> Replay:
        rows = len(compute().logits)

        def replay() -> Output:
            self.replays.append(rows)
            return compute()

        return replay


@pytest.fixture(scope="module")
def reference() -> TransformersModel:
    small = GROUPED | {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    return random_model(transformers.LlamaConfig(**small))


@pytest.fixture(scope="module")
def fused(reference: TransformersModel) -> FusedModel:
    pytest.importorskip("triton", reason="triton is not installed: decode steps cannot be captured")
    return FusedModel(
        "fused", reference.causal_lm, reference.shape, context_length=reference.context_length, backend="triton"
    )


def graphed(fused: FusedModel, sizes: list[int]) -> tuple[Hand, Recorded]:
    hand, recorded = Hand(fused), Recorded()
    with torch.inference_mode():
        hand.runner = Runner(DecodeGraphs(fused, hand.cache, recorded, sizes), hand.cache)
    return hand, recorded


def lines(hand: Hand) -> list[Line]:
    return [hand.start(lease(str(number), prompt)) for number, prompt in enumerate(PROMPTS)]


def test_buckets_grow_with_their_number() -> None:
    assert bucket_sizes(1) == [1]
    assert bucket_sizes(3) == [1, 2, 4]
    assert bucket_sizes(64) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]
    assert bucket_sizes(65)[-2:] == [64, 80]
    assert bucket_sizes(65_536)[-1] == 1024


@pytest.mark.parametrize("most", [5, 64, 100, 300, 1024])
def test_every_number_of_rows_has_a_bucket(most: int) -> None:
    sizes = bucket_sizes(most)

    assert sizes[-1] >= most
    assert all(low < high for low, high in pairwise(sizes))


def test_tokens_are_those_of_the_reference(reference: TransformersModel, fused: FusedModel) -> None:
    plain = Hand(reference)
    hand, recorded = graphed(fused, [1, 2, 4, 8])

    expected = plain.generate(lines(plain), 4)

    assert expected == hand.generate(lines(hand), 4)
    assert recorded.replays == [8] * 3  # the first step computes the prompts


def test_a_row_that_fills_up_touches_no_block(fused: FusedModel) -> None:
    hand, recorded = graphed(fused, [8])
    first, *others = lines(hand)
    hand.step([first, *others])
    hand.step([first, *others])
    before = hand.cache.pool.clone()

    hand.step([first])

    changed = (hand.cache.pool != before).flatten(1).any(1).nonzero().flatten().tolist()
    assert recorded.replays == [8, 8]
    assert first.table[-1:] == changed


def test_steps_that_fit_no_graph_are_computed_without(reference: TransformersModel, fused: FusedModel) -> None:
    plain = Hand(reference)
    hand, recorded = graphed(fused, [1, 2])

    assert plain.generate(lines(plain), 3) == hand.generate(lines(hand), 3)
    assert recorded.replays == []


def test_a_step_with_a_prompt_is_computed_without(fused: FusedModel) -> None:
    hand, recorded = graphed(fused, [1, 2, 4])
    first, second, *_ = lines(hand)
    hand.step([first])

    hand.step([first, second])  # of the second, the prompt is one token: it decodes
    hand.step([first, hand.start(lease("new", [4, 4]))])

    assert recorded.replays[-1:] == [2]


def test_another_cache_is_computed_without(fused: FusedModel) -> None:
    hand, recorded = graphed(fused, [1])
    other = Hand(fused)
    with torch.inference_mode():
        other.runner = Runner(DecodeGraphs(fused, hand.cache, recorded, [1]), other.cache)

    other.generate([other.start(lease("a", [5]))], 2)

    assert recorded.replays == []


@pytest.mark.parametrize("kind", [lambda fused, _: fused, lambda _, reference: reference])
def test_without_a_gpu_nothing_is_captured(
    kind: Callable[[FusedModel, TransformersModel], FusedModel | TransformersModel],
    fused: FusedModel,
    reference: TransformersModel,
) -> None:
    model = kind(fused, reference)

    assert with_graphs(model, Hand(fused).cache, 8) is model
