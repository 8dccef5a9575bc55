"""What a worker is, in figures: what its steps and copies take, and the sizes of its pools. One JSON document.

A running worker shows its own beside `/metrics`; the simulator makes workers like it.
"""

from typing import Annotated

import msgspec

from scheduler.costs import CostModel
from scheduler.single_stream import TYPICAL_CONTEXT
from scheduler.steps import StepFeatures
from scheduler.workload import MOST_MS, MOST_NOISE, Hardware

Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_MS)]
Size = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]
Step = tuple[Milliseconds, Milliseconds, Milliseconds, Milliseconds, Milliseconds]
_FAR = 1_000_000
"""So much of a feature that its weight stands out from rounding."""


class CalibrationError(ValueError):
    """Not a worker's figures; the message says what is wrong in one line."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of worker. The default costs are about what a model of 135 million weights takes on two CPU cores."""

    step: Step = (10.0, 0.25, 0.3125, 6e-4, 8e-5)
    """Per step, and per unit of each of `StepFeatures`."""
    copy: tuple[Milliseconds, Milliseconds] = (0.1, 0.2)
    """Per step with copies, and per block."""
    overhead_ms: Milliseconds = 0.0
    noise: Annotated[float, msgspec.Meta(ge=0, le=MOST_NOISE)] = 0.0
    block_size: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 16
    blocks: Size = 4096
    host_slots: Annotated[int, msgspec.Meta(ge=0, le=100_000_000)] = 8192
    max_sequences: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 64
    max_step_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 512
    learnt: bool = True
    """False while the costs are what a worker assumes that has run too few steps."""

    @property
    def hardware(self) -> Hardware:
        """Its costs, for a simulation."""
        return Hardware(step=self.step, copy=self.copy, overhead_ms=self.overhead_ms, noise=self.noise)

    def costs(self) -> CostModel:
        """What a worker like this knows of itself as it starts, as one that has measured."""
        costs, alone = CostModel(), StepFeatures(1, 0, TYPICAL_CONTEXT, 0)
        costs.know(self.step, self.copy, self.hardware.step_ms(alone))
        return costs

    @property
    def kv_tokens(self) -> int:
        """Tokens that its whole KV pool holds."""
        return self.blocks * self.block_size

    def to_json(self) -> bytes:
        """The document, as `read_calibration` takes it."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def read_calibration(document: bytes) -> Calibration:
    """The figures of a JSON document. Raises CalibrationError."""
    try:
        return msgspec.json.decode(document, type=Calibration)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        rule, _, place = str(error).rstrip("`").partition(" - at `$.")
        raise CalibrationError(f"{place}: {rule}" if place else rule) from None


def of_costs(costs: CostModel, **sizes: int) -> Calibration:
    """What a cost model has learnt, for a worker of these `sizes` (by the names of Calibration's fields)."""
    return Calibration(step=_step_weights(costs), copy=_copy_weights(costs), learnt=costs.has_learnt, **sizes)


def _step_weights(costs: CostModel) -> Step:
    """Its predictions are linear in the features: each one's weight is what a great deal of it adds."""
    row = StepFeatures(1, 0, 0, 0)
    rows, prefill, context, attention = (
        (costs.step_ms(row._replace(**{name: _FAR})) - costs.step_ms(row._replace(**{name: 1}))) / (_FAR - 1)
        for name in StepFeatures._fields
    )
    return (max(0.0, costs.step_ms(row) - rows), rows, prefill, context, attention)


def _copy_weights(costs: CostModel) -> tuple[float, float]:
    per_block = (costs.copy_ms(_FAR) - costs.copy_ms(1)) / (_FAR - 1)
    return (max(0.0, costs.copy_ms(1) - per_block), per_block)
