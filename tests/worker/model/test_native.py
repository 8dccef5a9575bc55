"""The compiled path beside transformers' modules: the same tokens, however a plan cuts and orders the rows."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
import transformers

from fairlane.worker.attention.backends import BACKENDS, REFERENCE, disagreement
from fairlane.worker.engine.sampling import BROKEN_LOGITS
from fairlane.worker.kv.cache import KVShape
from fairlane.worker.model.native import Arena, NativeModel, QuantisedWeights, interleaved, quantised, tiled
from fairlane.worker.model.packing import pack
from fairlane.worker.model.reference import TransformersModel
from fairlane.worker.model.select import build_native, every_logit
from fairlane.worker.native.library import HEAD_DIMS, has_int8, is_compiled, is_fastest, kernels
from fairlane.worker.native.processor import OLDER, supports
from tests.support.worker.fused_family import FAMILY, generate
from tests.support.worker.hand import Hand, lease
from tests.support.worker.prompts import PROMPTS
from tests.support.worker.random_models import GROUPED, random_model

CPU = torch.device("cpu")
INF = float("inf")
pytestmark = pytest.mark.skipif(not is_compiled(), reason="no compiler")


def native_of(reference: TransformersModel, *, int8: bool = False) -> NativeModel:
    """Whether it is the fastest here or not."""
    return NativeModel(
        reference.name, reference.causal_lm, reference.shape, context_length=reference.context_length, int8=int8
    )


@pytest.fixture(scope="module")
def native(tiny: TransformersModel) -> NativeModel:
    return native_of(tiny)


@pytest.fixture(scope="module", params=["", pytest.param("avx512", marks=pytest.mark.thorough), "avx2"])
def processor(request: pytest.FixtureRequest) -> Iterator[None]:
    """The kernels of this processor, and those of older ones, which widen 16-bit weights in registers."""
    if not {"": supports(), "avx512": supports("avx512_f"), "avx2": supports("avx2", "fma3")}[request.param]:
        pytest.skip("a processor of another kind")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OLDER, request.param)
        kernels.cache_clear()
        yield
    kernels.cache_clear()


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", FAMILY.values(), ids=FAMILY.keys())
def test_each_of_the_family_is_proven(
    config: transformers.PreTrainedConfig, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlane.worker.model.select.is_fastest", lambda *_: True)

    reference = random_model(config, dtype)
    assert build_native(reference, every_logit(reference)) is not None


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("config", FAMILY.values(), ids=FAMILY.keys())
def test_each_of_the_family_is_proven_with_weights_of_8_bits(
    config: transformers.PreTrainedConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlane.worker.model.select.is_fastest", lambda *_: True)

    reference = random_model(config, torch.bfloat16)
    assert build_native(reference, every_logit(reference), stored="int8") is not None


def test_a_wrong_scale_of_8_bits_is_noticed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def shuffled(weight: torch.Tensor) -> QuantisedWeights:
        return quantised(weight)._replace(scales=quantised(weight).scales.flip(0) * 3)

    monkeypatch.setattr("fairlane.worker.model.select.is_fastest", lambda *_: True)
    monkeypatch.setattr("fairlane.worker.model.native.quantised", shuffled)

    reference = random_model(transformers.LlamaConfig(**GROUPED), torch.bfloat16)
    assert build_native(reference, every_logit(reference), stored="int8") is None
    assert "its logits differ" in caplog.text


@pytest.mark.parametrize("config", FAMILY.values(), ids=FAMILY.keys())
def test_tokens_are_those_of_the_reference(config: transformers.PreTrainedConfig) -> None:
    reference = random_model(config)

    assert generate(reference) == generate(native_of(reference))


@pytest.mark.parametrize("count", [1, 2, 5, 13, 16])
def test_a_prompt_may_be_computed_in_chunks_of_any_size(
    tiny: TransformersModel, native: NativeModel, count: int
) -> None:
    assert generate(tiny) == generate(native, count=count)


def test_positions_beyond_the_first_rotations_are_turned_too(tiny: TransformersModel, native: NativeModel) -> None:
    native._rotations._table = native._rotations._computed(4)

    assert generate(tiny) == generate(native)


def test_positions_beyond_the_context_are_those_of_the_reference() -> None:
    reference = random_model(transformers.LlamaConfig(**GROUPED, max_position_embeddings=8))

    assert generate(reference) == generate(native_of(reference))


def test_a_step_in_which_nothing_samples_only_fills_the_cache(native: NativeModel) -> None:
    hand = Hand(native)

    result = hand.step([hand.start(lease("a", PROMPTS[2]))], count=4)

    assert (result.tokens, result.failed) == ({}, {})


@pytest.mark.parametrize("broken", [float("nan"), INF, -INF])
@pytest.mark.parametrize("int8", [False, True])
def test_a_broken_number_fails_its_row_alone(broken: float, int8: bool) -> None:
    config = transformers.LlamaConfig(**GROUPED, tie_word_embeddings=False)
    reference = random_model(config, torch.bfloat16 if int8 else torch.float32)
    reference.causal_lm.model.embed_tokens.weight[96] = broken
    hand = Hand(native_of(reference, int8=int8))
    bad, good = hand.start(lease("bad", [96] * 9)), hand.start(lease("good", PROMPTS[3]))

    result = hand.step([bad, good])

    assert {bad.seq: BROKEN_LOGITS} == result.failed
    assert good.seq in result.tokens


def test_what_a_broken_request_left_in_blocks_does_not_reach_their_next_owner(native: NativeModel) -> None:
    hand = Hand(native)
    hand.cache.pool.fill_(float("nan"))
    lines = [hand.start(lease(str(index), prompt)) for index, prompt in enumerate(PROMPTS)]

    assert hand.generate(lines, 12) == generate(native)


def test_other_kinds_of_processors_keep_torchs_products(monkeypatch: pytest.MonkeyPatch) -> None:
    def having(*features: str) -> bool:
        monkeypatch.delenv(OLDER, raising=False)
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(features, True), raising=False)
        return is_fastest(torch.bfloat16, 64, CPU)

    assert having("avx512_f", "avx512_bf16")
    assert not having("avx512_f", "avx512_bf16", "amx_bf16")
    assert having("avx512_f")
    assert having("avx2", "fma3")
    assert not having("avx2")
    assert not is_fastest(torch.float32, 72, CPU)
    assert not is_fastest(torch.float16, 64, CPU)


def test_weights_of_8_bits_are_for_processors_that_multiply_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def having(*features: str) -> bool:
        monkeypatch.delenv(OLDER, raising=False)
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(features, True), raising=False)
        return has_int8()

    assert having("avx512_f", "avx512_bf16", "avx512_vnni")
    assert not having("avx512_f", "avx512_bf16")
    assert having("avx512_f", "avx512_vnni")
    assert not having("avx512_f", "avx512_bf16", "avx512_vnni", "amx_bf16")


def test_tiles_hold_the_weights_output_by_output() -> None:
    weight = torch.arange(35 * 6, dtype=torch.float32).view(35, 6)

    tiles = tiled(weight)
    pairs = tiled(weight.bfloat16()).contiguous().view(torch.bfloat16).view(2, 3, 32, 2)

    assert tiles.shape == (2, 6, 32)
    assert tiles[1, 4, 2] == weight[34, 4]
    assert tiles[1, 4, 3] == 0
    assert pairs[1, 2, 2].tolist() == weight[34, 4:].bfloat16().tolist()


def test_tiles_of_8_bits_hold_four_inputs_side_by_side() -> None:
    weight = torch.arange(35 * 6).to(torch.uint8).view(35, 6)

    fours = tiled(weight).contiguous().view(torch.uint8).view(2, 2, 32, 4)

    assert fours[0, 0, 5].tolist() == weight[5, :4].tolist()
    assert fours[1, 1, 2].tolist() == [*weight[34, 4:].tolist(), 0, 0]


def test_weights_of_8_bits_are_the_nearest_steps_of_their_outputs_scale() -> None:
    weight = torch.randn(40, 24, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 2, 40)[:, None]
    weight[7] = 0.0

    steps, scales = quantised(weight.bfloat16())

    error = ((steps.int() - 128) * scales[:, None] - weight.bfloat16().float()).abs()
    assert bool((error <= 0.5001 * scales[:, None]).all())
    assert int((steps.int() - 128).abs().max()) == 127
    assert bool((steps[7] == 128).all())


def test_gate_and_up_stand_beside_each_other_in_sixteens() -> None:
    gate, up = torch.arange(20.0), 100 + torch.arange(20.0)

    found = interleaved(torch.cat((gate, up))).tolist()

    assert found == [*gate[:16], *up[:16], *gate[16:], *[0] * 12, *up[16:], *[0] * 12]


def test_a_full_arena_says_so() -> None:
    arena = Arena(100)
    arena.keep(torch.ones(16))

    with pytest.raises(MemoryError, match="full"):
        arena.keep(torch.ones(16))


def logits_of(model: NativeModel, prompts: Sequence[Sequence[int]], threads: int = 1) -> torch.Tensor:
    """Of each prompt's last token, all computed in one step: [prompts, vocabulary]."""
    hand = Hand(model, blocks=128)
    rows = [hand.row(hand.start(lease(str(index), prompt))) for index, prompt in enumerate(prompts)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return model.forward(pack(rows, hand.cache, model.backend), hand.cache).logits.clone()
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", sorted(HEAD_DIMS))
def test_attention_is_that_of_the_reference(dtype: torch.dtype, head_dim: int) -> None:
    shape = KVShape(layers=1, kv_heads=2, head_dim=head_dim, dtype=dtype)

    assert disagreement(BACKENDS["cpu"], BACKENDS[REFERENCE], shape, CPU) is None


@pytest.mark.usefixtures("processor")
def test_weights_of_16_bits_are_widened_without_another_rounding() -> None:
    """The logits are nearer to those of the same weights in float32 than bfloat16's own step."""
    reference = random_model(transformers.LlamaConfig(**GROUPED), torch.bfloat16)
    same = random_model(transformers.LlamaConfig(**GROUPED), torch.float32)
    same.causal_lm.load_state_dict(reference.causal_lm.float().state_dict())
    shape = replace(same.shape, dtype=torch.bfloat16)
    expected = logits_of(native_of(same), PROMPTS)
    rounded = NativeModel("rounded", same.causal_lm, shape, context_length=same.context_length)

    error = (logits_of(rounded, PROMPTS) - expected).abs().max() / expected.abs().max()

    assert error < 2**-6


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize(("dtype", "int8"), [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)])
def test_no_number_depends_on_who_computes_it_or_beside_what(dtype: torch.dtype, int8: bool) -> None:
    model = native_of(random_model(transformers.LlamaConfig(**GROUPED), dtype), int8=int8)
    alone = torch.cat([logits_of(model, [prompt]) for prompt in PROMPTS])

    for copies in (1, 3):  # with the first, five rows sample of 66; with the others, 15 of 198
        for threads in (1, 2, 5):  # five share fewer tiles than that
            found = logits_of(model, PROMPTS * copies, threads)
            assert torch.equal(found, alone.repeat(copies, 1)), f"{copies} of each, {threads} threads"


@pytest.mark.parametrize("vocab_size", [101, 112, 97])
def test_the_likeliest_tokens_come_with_the_logits(vocab_size: int) -> None:
    hand = Hand(native_of(random_model(transformers.LlamaConfig(**GROUPED | {"vocab_size": vocab_size}))))
    rows = [hand.row(hand.start(lease(str(index), prompt))) for index, prompt in enumerate(PROMPTS)]
    model = hand.runner._model

    logits, likeliest = model.forward(pack(rows, hand.cache, model.backend), hand.cache)

    assert likeliest is not None
    assert torch.equal(likeliest.tokens, logits.argmax(-1))
    assert torch.equal(likeliest.logits, logits.amax(-1))
