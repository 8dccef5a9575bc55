"""How much faster than static batches any scheduling can be, at the same KV bytes and costs per step.

A step costs a base, whatever it holds, and something for each row, token and KV token in it. Whoever serves the same
requests pays the same for the latter; schedules differ by their number of steps. Static batches of s take as many as
the longest output of each batch. Nobody takes fewer than the longest output of all, nor fewer than it takes to hold
every sequence's KV for every one of its steps in a pool of so many tokens, were it always full.

The idea is Anyscale's decomposition (slot waste times over-reservation), with the steps' cost not taken for constant.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.common.turns import Request


@dataclass(frozen=True, slots=True)
class Bound:
    """Of paged continuous batching over static batches."""

    steps: float
    """The ratio of the numbers of steps: the bound where a step costs the same whatever it holds."""
    time: float
    """The ratio of times."""
    in_order: float
    """The ratio of times for whoever serves in order of arrival: the longest output waits for its turn."""


def bound(
    requests: Sequence[Request], slots: int, kv_tokens: int, max_step_tokens: int, weights: Sequence[float]
) -> Bound:
    """For static batches of `slots` in order of arrival; `weights` as `CostModel.step_weights` gives them."""
    base_ms = weights[0]
    outputs = [tokens for _, tokens in requests]
    static = sum(max(outputs[start : start + slots]) for start in range(0, len(outputs), slots))
    held = sum(tokens * len(prompt) + tokens * (tokens + 1) // 2 for prompt, tokens in requests)
    fewest = max(max(outputs), held / kv_tokens)
    shared_ms = sum(_own_ms(len(prompt), tokens, weights) for prompt, tokens in requests)
    in_order = steps_in_order(requests, kv_tokens, max_step_tokens)
    static_ms, fewest_ms, in_order_ms = (shared_ms + base_ms * steps for steps in (static, fewest, in_order))
    return Bound(static / fewest, static_ms / fewest_ms, static_ms / in_order_ms)


def least_slowdown(
    requests: Sequence[Request], kv_tokens: int, max_step_tokens: int, weights: Sequence[float]
) -> float:
    """What so little KV costs whoever serves in order of arrival, even if its pool is always full and preemption is
    free: the time with KV for all over the time with KV of so many tokens."""
    shared_ms = sum(_own_ms(len(prompt), tokens, weights) for prompt, tokens in requests)
    ample, little = (
        shared_ms + weights[0] * steps_in_order(requests, kv, max_step_tokens) for kv in (math.inf, kv_tokens)
    )
    return ample / little


def steps_in_order(requests: Sequence[Request], kv_tokens: float, max_step_tokens: int, block_size: int = 16) -> int:
    """Steps that it takes to serve all in order of arrival, from whole blocks. Whoever came last gives way, and goes on
    at no cost."""

    def taken(*holders: tuple[int, int]) -> int:
        return sum(-(-(held + 1) // block_size) * block_size for held, _ in holders)

    waiting, steps = deque((len(prompt), tokens) for prompt, tokens in requests), 0
    running: list[tuple[int, int]] = []  # tokens that each holds, and output tokens that it lacks
    while waiting or running:
        while taken(*running) > kv_tokens:
            waiting.appendleft(running.pop())
        left, room = max_step_tokens - len(running), kv_tokens - taken(*running)
        while waiting and left > 0 and taken(waiting[0]) <= room:
            running.append(waiting.popleft())
            left, room = left - running[-1][0], room - taken(running[-1])
        running = [(held + 1, lacking - 1) for held, lacking in running if lacking > 1]
        steps += 1
    return steps


def _own_ms(prompt: int, tokens: int, weights: Sequence[float]) -> float:
    """What a request costs in whichever steps: its prefill in one piece, then its single-token rows."""
    _, row_ms, token_ms, context_ms, pair_ms = weights
    contexts = sum(range(prompt + 1, prompt + tokens))
    return row_ms * tokens + token_ms * prompt + pair_ms * prompt * prompt + context_ms * contexts
