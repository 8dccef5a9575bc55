"""A worker's measurements: the costs of its steps and copies, and the sizes of its pools, as one JSON document.

A running worker serves its own document at `/costs`, alongside `/metrics`. Presets such as `h100-8b` are rooflines from
a data sheet and a model's shape; docs/simulation.md has their derivation and sources."""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from fairlane.scheduler.planner.costs import TYPICAL_CONTEXT, CostModel
from fairlane.scheduler.planner.steps import StepFeatures
from fairlane.scheduler.simulation.workload import Hardware, Milliseconds

Size = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]
Step = tuple[Milliseconds, Milliseconds, Milliseconds, Milliseconds, Milliseconds]


class CalibrationError(ValueError):
    """An invalid calibration document; the message names the problem in one line."""


class Calibration(Hardware, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of worker. The default costs are about those of a model with 135 million weights on two CPU cores."""

    step: Step = (10.0, 0.25, 0.3125, 6e-4, 8e-5)
    copy: tuple[Milliseconds, Milliseconds] = (0.1, 0.2)
    block_size: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 16
    blocks: Size = 4096
    host_slots: Annotated[int, msgspec.Meta(ge=0, le=100_000_000)] = 8192
    max_sequences: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 64
    max_step_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 512
    # False if the costs are a worker's assumptions, before it has run enough steps.
    learnt: bool = True

    def costs(self) -> CostModel:
        costs, alone = CostModel(), StepFeatures(1, 0, TYPICAL_CONTEXT, 0)
        costs.know(self.step, self.copy, self.step_ms(alone))
        return costs

    @property
    def kv_tokens(self) -> int:
        return self.blocks * self.block_size

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def read_calibration(document: bytes) -> Calibration:
    """Parse a JSON document. Raises CalibrationError."""
    try:
        return msgspec.json.decode(document, type=Calibration)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        rule, _, place = str(error).rstrip("`").partition(" - at `$.")
        raise CalibrationError(f"{place}: {rule}" if place else rule) from None


def of_costs(costs: CostModel, **sizes: int) -> Calibration:
    """Return the calibration of a learnt cost model, for a worker of these `sizes` (named as Calibration's fields)."""
    base, row, token, context, pair = costs.step_weights()
    per_step, per_block = costs.copy_weights()
    return Calibration(
        step=(base, row, token, context, pair), copy=(per_step, per_block), learnt=costs.has_learnt, **sizes
    )


BLOCK_SIZE = 16
BYTES = 2
# Fraction of the memory for weights and KV; activations and the runtime take the rest.
MEMORY_PART = 0.9
# Fractions of the peaks of arithmetic, memory, links and PCIe, and arithmetic in attention.
COMPUTE_PART, READ_PART, LINK_PART, PAIR_PART = 0.5, 0.8, 0.7, 0.4
# Latency of one between GPUs, independent of its size.
ALL_REDUCE_MS = 0.012
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's size and shape."""

    weights: float
    layers: int
    width: int
    kv_heads: int
    head_size: int

    @property
    def kv_bytes(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_size * BYTES


@dataclass(frozen=True, slots=True)
class Device:
    """Peak rates of one accelerator."""

    flops: float
    # Bytes per second.
    memory_rate: float
    # Bytes.
    memory: float
    # To the host, bytes per second one way.
    copy_rate: float
    # To its neighbours, bytes per second one way.
    link_rate: float
    # Fixed time of a step: kernel launches, sampling.
    launch_ms: float
    # Between two steps.
    overhead_ms: float


SHAPES = {
    "1b": Shape(1.24e9, 16, 2048, 8, 64),
    "8b": Shape(8.03e9, 32, 4096, 8, 128),
    "70b": Shape(70.6e9, 80, 8192, 8, 128),
}
# The L4 has no NVLink: its neighbours are connected by PCIe.
DEVICES = {
    "l4": Device(121e12, 300e9, 24e9, 32e9, 32e9, 1.0, 0.5),
    "a100": Device(312e12, 2039e9, 80e9, 32e9, 300e9, 1.0, 0.5),
    "h100": Device(989.5e12, 3350e9, 80e9, 64e9, 450e9, 1.0, 0.5),
    "h200": Device(989.5e12, 4800e9, 141e9, 64e9, 450e9, 1.0, 0.5),
}
# Tensor-parallel size where one GPU does not hold the weights and a useful KV pool; otherwise one.
GPUS = {("l4", "70b"): 8, ("a100", "70b"): 4, ("h100", "70b"): 4, ("h200", "70b"): 2}
# Measured (docs/performance.md, two threads: 44 to 49 GB/s); memory for KV in addition to the weights.
CPU_MEMORY_RATE, CPU_POOL = 46e9, 4 * GIB
# Derived from 0.3125 ms per prompt token for a model with 135 million weights.
CPU_FLOPS = 2 * 135e6 / 0.3125e-3


def names() -> list[str]:
    """Return the name of every preset."""
    return ["cpu-135m", *(f"{device}-{shape}" for device in ("cpu", *DEVICES) for shape in SHAPES)]


def preset(name: str) -> Calibration:
    """Return a worker by its name. Raises ValueError."""
    if name == "cpu-135m":
        return Calibration()
    device, _, shape = name.lower().partition("-")
    if shape not in SHAPES or device not in ("cpu", *DEVICES):
        raise ValueError(f"hardware must be one of {', '.join(names())}, not {name[:40]}")
    if device == "cpu":
        return _cpu(SHAPES[shape])
    return _gpus(DEVICES[device], SHAPES[shape], GPUS.get((device, shape), 1))


def _gpus(device: Device, shape: Shape, count: int) -> Calibration:
    flops = COMPUTE_PART * device.flops * count
    read = READ_PART * device.memory_rate * count
    reduced = 2 * shape.layers  # all-reduces per step, around a ring
    waits_ms = reduced * ALL_REDUCE_MS if count > 1 else 0.0
    carried = reduced * shape.width * BYTES * 2 * (count - 1) / count / (LINK_PART * device.link_rate)
    token_ms = 1e3 * (2 * shape.weights / flops + carried)
    pool = int(MEMORY_PART * device.memory * count - shape.weights * BYTES) // (shape.kv_bytes * BLOCK_SIZE)
    return Calibration(
        step=(
            device.launch_ms + 1e3 * shape.weights * BYTES / read + waits_ms,
            token_ms,
            token_ms,
            1e3 * shape.kv_bytes / read,
            _pair_ms(shape, PAIR_PART * device.flops * count),
        ),
        copy=(0.05, 1e3 * BLOCK_SIZE * shape.kv_bytes / (LINK_PART * device.copy_rate * count)),
        overhead_ms=device.overhead_ms,
        block_size=BLOCK_SIZE,
        blocks=pool,
        host_slots=pool,
        max_sequences=256,
        max_step_tokens=8_192,
    )


def _cpu(shape: Shape) -> Calibration:
    pool = CPU_POOL // (shape.kv_bytes * BLOCK_SIZE)
    token_ms = 1e3 * 2 * shape.weights / CPU_FLOPS
    return Calibration(
        step=(
            1e3 * shape.weights * BYTES / CPU_MEMORY_RATE,
            token_ms,
            token_ms,
            1e3 * shape.kv_bytes / CPU_MEMORY_RATE,
            _pair_ms(shape, CPU_FLOPS),
        ),
        copy=(0.1, 1e3 * 2 * BLOCK_SIZE * shape.kv_bytes / CPU_MEMORY_RATE),
        block_size=BLOCK_SIZE,
        blocks=pool,
        host_slots=pool,
    )


def _pair_ms(shape: Shape, flops: float) -> float:
    return 1e3 * 4 * shape.layers * shape.width / flops
