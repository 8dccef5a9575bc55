"""The GPU benchmark's own arithmetic, on a tiny model and a CPU: that figures come out, not what they are."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import serving
from benchmarks.gpu.stand import BLOCK_SIZE, SHAPES, Ceilings, Stand
from fairlane.worker.engine.runner import Runner
from fairlane.worker.kv.cache import KVCache
from fairlane.worker.model.fused import FusedModel
from fairlane.worker.model.reference import TransformersModel, register_attention

CEILINGS = Ceilings(bytes_per_s=1e9, flops_per_s=1e9, out_bytes_per_s=1e9, in_bytes_per_s=1e9)


def once(work: Callable[[], object]) -> float:
    work()
    return 1e-3


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    for name, value in {"ROWS": 3, "CONTEXT": 64, "STEPS": 12, "PREFILL_TOKENS": 32, "SWAPPED": 4, "MANY": 8}.items():
        monkeypatch.setattr(gpu, name, value)
    monkeypatch.setattr(gpu, "device_s", once)
    monkeypatch.setattr(gpu, "wall_s", once)
    small = {"vocab_size": 101, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 16}
    register_attention()
    config = transformers.LlamaConfig(**SHAPES["1B"] | small | {"num_attention_heads": 2, "num_key_value_heads": 1})
    causal_lm = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="fairlane_paged")
    shape = TransformersModel("tiny", causal_lm.eval().requires_grad_(False)).shape
    fused = FusedModel("tiny", causal_lm, shape, context_length=256)
    cache = KVCache(shape, blocks=64, host_slots=8, block_size=BLOCK_SIZE)
    return Stand("tiny", causal_lm, fused, cache, Runner(fused, cache))


def test_it_says_in_one_line_that_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert gpu.main([]) == 2
    assert capsys.readouterr().err == "benchmarks.gpu: there is no CUDA device here\n"


def test_what_a_step_reads_is_counted(stand: Stand) -> None:
    layer = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48 + 2 * 32

    assert stand.linear_parameters == layer + 32
    assert stand.read_bytes == 4 * (layer + 32 + 32 * 101)
    assert stand.token_bytes == 2 * 16 * 4


def test_decode_steps_are_measured(stand: Stand) -> None:
    share, step_ms = gpu.roofline_share(stand, CEILINGS)

    read = stand.read_bytes + 3 * 64 * stand.token_bytes
    assert share == pytest.approx(read / 1e9 * 1e3 / step_ms)


def test_a_preemption_is_measured_beside_plain_steps(stand: Stand) -> None:
    before = stand.cache.pool[-5:-1].normal_().clone()

    assert gpu.stall_share(stand) > -2.0
    assert torch.equal(stand.cache.host_pool[:4], before.flip(0))


def test_prefill_counts_its_operations(stand: Stand) -> None:
    pairs = 32 * 33 // 2

    share = gpu.prefill_share(stand, CEILINGS)

    assert share == pytest.approx(4 * (2 * stand.linear_parameters * 32 + 4 * 2 * 16 * pairs) / 1e-3 / 1e9)


def test_swaps_bring_the_same_blocks_back(stand: Stand) -> None:
    stand.cache.pool.normal_()
    before = stand.cache.pool.clone()

    out, back = gpu.swap_shares(stand, CEILINGS)

    assert out == back == pytest.approx(8 * BLOCK_SIZE * stand.token_bytes / 1e-3 / 1e9)
    assert torch.equal(before, stand.cache.pool)


@pytest.mark.thorough
def test_a_latency_lane_is_measured_beside_a_flood(tmp_path: Path) -> None:
    file = tmp_path / "lines.json"

    assert serving.main(["--shape", "tiny", "--seconds", "1", "--json", str(file)]) in (0, 1)
    assert all(line["value"] > 0 for line in json.loads(file.read_text()))
