"""The costs of a worker's steps, as learnt and reported in its heartbeat: by part, and as curves."""

from typing import Annotated

from typing_extensions import TypedDict  # pydantic reads its own kind only, before Python 3.12

from fairlane.common.views import about
from fairlane.scheduler.planner.costs import TYPICAL_CONTEXT, step_ms_by
from fairlane.scheduler.planner.steps import StepFeatures
from fairlane.scheduler.protocol.messages import WorkerStatus

# Tokens at which the prefill curve ends; it ends earlier for a KV pool that is smaller.
LONGEST_PROMPT = 4096


class WorkerCosts(TypedDict):
    """Costs of a step by part, and as curves: points of [tokens, milliseconds]."""

    base_ms: Annotated[float, about("Fixed cost of a step")]
    row_ms: Annotated[float, about("Per sequence")]
    prefill_token_ms: Annotated[float, about("Per prompt token")]
    context_token_ms: Annotated[float, about("Per KV token that a decoding sequence reads")]
    attention_pair_ms: Annotated[float, about("Per prompt token and token that it attends to")]
    prefill: Annotated[list[list[float]], about("Steps that compute only a prompt of n tokens: [n, ms]")]
    decode: Annotated[list[list[float]], about("Steps of one token for n sequences with 512 KV tokens each: [n, ms]")]


def worker_costs(status: WorkerStatus) -> WorkerCosts | None:
    """Return the worker's costs, or None until it has learnt them."""
    if not status.step_weights:
        return None
    base_ms, row_ms, token_ms, context_ms, pair_ms = status.step_weights
    return {
        "base_ms": base_ms,
        "row_ms": row_ms,
        "prefill_token_ms": token_ms,
        "context_token_ms": context_ms,
        "attention_pair_ms": pair_ms,
        "prefill": [
            [tokens, step_ms_by(status.step_weights, StepFeatures(1, tokens, 0, tokens * tokens))]
            for tokens in _doubled(min(status.kv_tokens, LONGEST_PROMPT))
        ],
        "decode": [
            [rows, step_ms_by(status.step_weights, StepFeatures(rows, 0, rows * TYPICAL_CONTEXT, 0))]
            for rows in _doubled(status.max_sequences)
        ],
    }


def _doubled(last: int) -> list[int]:
    return [1 << power for power in range((last - 1).bit_length())] + [last] if last > 0 else []
