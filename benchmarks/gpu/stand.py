"""What the GPU benchmark measures on: real shapes with random weights, the device's own ceilings, and its clock."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import torch
import transformers

from fairlane.worker.attention.backends import fastest_backends
from fairlane.worker.engine.runner import Runner
from fairlane.worker.kv.cache import KVCache, KVShape
from fairlane.worker.model.cuda_graphs import with_graphs
from fairlane.worker.model.fused import FusedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BLOCK_SIZE = 16
_LLAMA = {
    "vocab_size": 128_256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
    "tie_word_embeddings": False,
}
SHAPES = {
    "8B": _LLAMA | {"hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "head_dim": 128},
    "1B": _LLAMA | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64},
}
"""Of Llama 3.1 8B and Llama 3.2 1B, but for tied embeddings and stretched positions."""
_COPY_BYTES = 2**30
_READ_BYTES = 2**33
_GEMM_SIDE = 8192


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this device does at best, measured now."""

    bytes_per_s: float
    """Its memory, copied from or summed up, whichever is faster."""
    flops_per_s: float
    """A large product of bfloat16 matrices of random numbers."""
    out_bytes_per_s: float
    """To page-locked host memory, in one copy."""
    in_bytes_per_s: float
    """From there."""


@dataclass(frozen=True, slots=True)
class Stand:
    """A model with random weights, our fused model over them, and a runner on a cache of so many blocks."""

    name: str
    causal_lm: "PreTrainedModel"
    fused: FusedModel
    cache: KVCache
    runner: Runner

    @property
    def linear_parameters(self) -> int:
        """Of the matrices that every token passes; the head's are apart, and an embedding is looked up."""
        everything = sum(parameter.numel() for parameter in self.causal_lm.parameters())
        return int(
            everything - self.causal_lm.lm_head.weight.numel() - self.causal_lm.model.embed_tokens.weight.numel()
        )

    @property
    def read_bytes(self) -> int:
        """Weights that a decode step reads."""
        item = self.cache.dtype.itemsize
        return (self.linear_parameters + int(self.causal_lm.lm_head.weight.numel())) * item

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token."""
        return self.cache.shape.block_bytes(BLOCK_SIZE) // BLOCK_SIZE


def measure_ceilings() -> Ceilings:
    """About a second's work."""
    left, right = torch.randn(2, _GEMM_SIDE, _GEMM_SIDE, dtype=torch.bfloat16, device="cuda")
    product_s = device_s(lambda: left @ right)
    host = torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    return Ceilings(
        bytes_per_s=_memory_bytes_per_s(),
        flops_per_s=2 * _GEMM_SIDE**3 / product_s,
        out_bytes_per_s=_COPY_BYTES / device_s(lambda: host.copy_(device, non_blocking=True)),
        in_bytes_per_s=_COPY_BYTES / device_s(lambda: device.copy_(host, non_blocking=True)),
    )


def _memory_bytes_per_s() -> float:
    source = torch.empty(_READ_BYTES // 4, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    copied_s, summed_s = device_s(lambda: target.copy_(source)), device_s(lambda: source.sum())
    return max(2 * _READ_BYTES / copied_s, _READ_BYTES / summed_s)


def device_s(work: Callable[[], object], repeats: int = 10) -> float:
    """The median time of `work` on the device, by its own events, after two unmeasured runs."""
    for _ in range(2):
        work()
    spans = []
    for _ in range(repeats):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        work()
        ended.record()
        spans.append((began, ended))
    torch.cuda.synchronize()
    return float(median(began.elapsed_time(ended) for began, ended in spans)) / 1e3


def wall_s(work: Callable[[], object], repeats: int = 5) -> float:
    """The median time until all of the device's streams are done with `work`, after one unmeasured run."""
    work()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return median(times)


def make_stand(name: str, *, rows: int, blocks: int, host_slots: int) -> Stand:
    """Random weights of the shape `name`; decode steps of up to `rows` rows are captured."""
    config = transformers.LlamaConfig(**SHAPES[name])
    with torch.device("cuda"):
        causal_lm = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    causal_lm = causal_lm.eval().requires_grad_(False)
    device = causal_lm.device
    shape = KVShape(config.num_hidden_layers, config.num_key_value_heads, config.head_dim, torch.bfloat16)
    fused = FusedModel(
        name,
        causal_lm,
        shape,
        context_length=config.max_position_embeddings,
        backend=next(fastest_backends(shape, device)),
    )
    cache = KVCache(shape, blocks=blocks, host_slots=host_slots, block_size=BLOCK_SIZE, device=device)
    cache.pool[:-1].normal_()
    return Stand(name, causal_lm, fused, cache, Runner(with_graphs(fused, cache, rows), cache))
