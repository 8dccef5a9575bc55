"""What a request costs a worker, in milliseconds of its time, from the weights that workers report.

A prompt costs its prefill. An output token costs its row, the KV that it reads, and a share of what every step costs:
the larger of the sequence's shares of KV and of batch slots, for so much it keeps from others. Requests that fill a
worker so pay for its steps exactly; in one that is not full they are told apart by room, not by time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.host_claims import STAYING_PART
from scheduler.messages import WorkerStatus
from scheduler.steps import StepFeatures

TYPICAL_PROMPT_TOKENS = 512
REPRICED_BEYOND = 0.2
WEIGHTS = 1 + len(StepFeatures._fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """Prices at workers like these; the mean of them where they differ."""

    workers: int
    kv_tokens: float
    """Of one worker; so the slots."""
    slots: float
    host_tokens: float = 0.0
    """KV tokens of one worker's host pool."""
    base_ms: float
    """Of a step, whatever it holds."""
    row_ms: float
    token_ms: float
    """Of a token in a prompt."""
    context_ms: float
    """Of a KV token that a row reads."""
    pair_ms: float
    """Of a pair of prompt tokens, one of which attends to the other."""
    recent_step_ms: float
    """What a step took of late."""

    def prefill_ms(self, prompt_tokens: int) -> float:
        """Of a prompt."""
        return prompt_tokens * (self.token_ms + self.pair_ms * prompt_tokens / 2.0)

    def share(self, kv_tokens: float) -> float:
        """Part of a worker that a sequence with so much KV takes up."""
        return max(kv_tokens / self.kv_tokens, 1.0 / self.slots)

    def exact_share(self, most_tokens: float) -> float:
        """Part of a worker that is counted for exact work which may come to so much KV: of its host pool, or where that
        never holds it, of what such work may keep on the device."""
        if most_tokens <= self.host_tokens:
            return most_tokens / self.host_tokens
        return min(1.0, STAYING_PART * most_tokens / self.kv_tokens)

    def output_ms(self, kv_tokens: float) -> float:
        """Of one output token of such a sequence."""
        return self.row_ms + self.context_ms * kv_tokens + self.base_ms * self.share(kv_tokens)

    def full_step_ms(self, kv_tokens: float) -> float:
        """What a step takes in a worker full of such sequences, all of which decode."""
        return self.output_ms(kv_tokens) / self.share(kv_tokens)

    def differs(self, other: "Tariff") -> bool:
        """A price of something typical is another by more than REPRICED_BEYOND."""
        return any(
            abs(mine - others) > REPRICED_BEYOND * others
            for mine, others in zip(self._typical, other._typical, strict=True)
        )

    @property
    def _typical(self) -> tuple[float, ...]:
        tokens = TYPICAL_PROMPT_TOKENS
        return self.prefill_ms(tokens), self.output_ms(tokens), self.share(tokens), self.full_step_ms(tokens)


def tariff_of(workers: Sequence[WorkerStatus]) -> Tariff | None:
    """The prices of all that serve, as those say that know their costs; None where none does."""
    serving = [one for one in workers if not one.draining and one.kv_tokens and one.max_sequences]
    known = [one for one in serving if len(one.step_weights) == WEIGHTS]
    if not known:
        return None
    columns = zip(*(one.step_weights for one in known), strict=True)
    base_ms, row_ms, token_ms, context_ms, pair_ms = (sum(column) / len(known) for column in columns)
    return Tariff(
        workers=len(serving),
        kv_tokens=sum(one.kv_tokens for one in serving) / len(serving),
        slots=sum(one.max_sequences for one in serving) / len(serving),
        host_tokens=sum(one.host_tokens for one in serving) / len(serving),
        base_ms=base_ms,
        row_ms=row_ms,
        token_ms=token_ms,
        context_ms=context_ms,
        pair_ms=pair_ms,
        recent_step_ms=sum(one.step_ms for one in known) / len(known),
    )
