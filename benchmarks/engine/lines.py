"""The numbered lines, from what the engines answered. A ratio is taken round by round and counts by the end of its
95 % interval that is worse for us; of a single round it is what it is."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

from benchmarks.common.intervals import Interval, interval
from benchmarks.common.line import Line, at_least, at_most, unmeasured
from benchmarks.common.turns import Answer
from benchmarks.engine import programme as p
from benchmarks.engine.bound import bound, least_slowdown
from benchmarks.engine.footprint import MIB, Footprint
from benchmarks.engine.work import demand_tokens, load

ABSENT = "did not take part: see benchmarks/peers.md"
QUICK = "left out by --quick"
LEAK_REQUESTS = 100_000
SMALLEST = 1e-6
"""What a share counts for that is nothing or, by the clock's grain, less."""
Latencies = Mapping[float, Mapping[str, Sequence[Sequence[float]]]]
"""Seconds from arrival to last token, by load and policy, in each round."""


def throughput(results: p.Results, plain_requests: int | None = None) -> list[Line]:
    """Lines 1 and 2, but for what our engine says about itself; transformers served the first `plain_requests`."""
    w1, w2 = (p.plain_name(name, plain_requests) for name in (p.W1, p.W2))
    pairs = [
        (1, p.W1, p.VLLM, 1.1),
        (1, p.W1, p.OPENVINO, 1.3),
        (1, w1, p.CONTINUOUS, 8.0),
        (1, w1, p.STATIC_32, 13.0),
        (2, p.W2, p.VLLM, 1.1),
        (2, w2, p.STATIC_16, 10.0),
        (2, w2, p.STATIC_32, 7.0),
    ]
    return [_times(results, *pair) for pair in pairs]


def scheduling(results: p.Results, latencies: Latencies) -> list[Line]:
    """Line 2 inside our engine: static batches, continuous with reservation, paged, at the same KV bytes."""
    names = ("share of the bound of paged over static", *(f"{part} latency over the others', worst" for part in _PARTS))
    if not results.get((p.W2, p.IN_PAGED)):
        return [unmeasured(2, name, target, QUICK) for name, target in zip(names, (0.9, 1.0, 1.0), strict=True)]
    weights = results[p.W2, p.IN_PAGED][-1]["step_weights"]
    most = bound(load("w2"), p.SLOTS, p.EQUAL_KV_TOKENS, p.STEP_TOKENS, weights)
    pairs = zip(*(p.seconds(results, p.W2, name) for name in (p.IN_STATIC, p.IN_PAGED)), strict=True)
    value, how = _worse_end([static / paged / most.time for static, paged in pairs], "lower")
    how = f"{how}; bound {most.time:.2f}x by the steps' measured costs ({most.steps:.2f}x in steps)"
    how = f"{how}, {most.in_order:.2f}x in order of arrival"
    worst = [_slowest(latencies, part) for part in _PARTS.values()]
    said = f"W2 by Poisson arrivals at {', '.join(f'{one:g}' for one in latencies)} of paged throughput"
    return [
        at_least(2, names[0], value, 0.9, how),
        *(at_most(2, name, one, 1.0, f"{where}; {said}") for name, (one, where) in zip(names[1:], worst, strict=True)),
    ]


def _slowest(latencies: Latencies, part: float) -> tuple[float, str]:
    """The largest ratio of a percentile of paged latencies to another policy's at the same load, and where that is."""
    found = []
    for at, by in latencies.items():
        for other in (p.IN_STATIC, p.IN_RESERVE):
            pairs = zip(by[p.IN_PAGED], by[other], strict=True)
            value, how = _worse_end([_percentile(own, part) / _percentile(its, part) for own, its in pairs], "upper")
            found.append((value, f"at {at:g}, beside {other}: {how}"))
    return max(found)


def alone(results: p.Results) -> list[Line]:
    """Line 3. The memory's rate was taken beside each turn."""
    name = "TTFT of a 512-token prompt over vLLM's"
    theirs, ours = (p.seconds(results, p.FIRST, peer) for peer in (p.VLLM, p.OURS))
    if theirs:
        value, how = _worse_end([mine / other for mine, other in zip(ours, theirs, strict=True)], "upper")
        first = at_most(3, name, value, 1.0, how)
    else:
        first = unmeasured(3, name, 1.0, ABSENT)
    answers = results[p.ALONE, p.OURS]
    rooflines_s = [answer["weight_bytes"] / answer["bytes_per_s"] for answer in answers]
    shares = [least / one for least, one in zip(rooflines_s, tpot_s(results, p.OURS), strict=True)]
    value, how = _worse_end(shares, "lower")
    rates = sorted(answer["bytes_per_s"] / 1e9 for answer in answers)
    how = f"{how}; {answers[0]['weight_bytes'] / 1e6:.0f} MB of weights at {rates[0]:.1f} to {rates[-1]:.1f} GB/s"
    return [first, at_least(3, "share of the memory roofline at batch 1", value, 0.7, how)]


def tpot_s(results: p.Results, name: str) -> list[float]:
    """Seconds per output token after the first, in each round."""
    pairs = zip(p.seconds(results, p.ALONE, name), p.seconds(results, p.FIRST, name), strict=True)
    return [(whole - first) / p.ALONE_TOKENS for whole, first in pairs]


def overhead(answers: Sequence[Answer]) -> list[Line]:
    """Line 4."""
    value, how = _worse_end([answer["share"] for answer in answers], "upper")
    step_ms = statistics.median(answer["step_ms"] for answer in answers)
    how = f"{how}; engine thread with its reports, steps of {step_ms:.1f} ms"
    return [at_most(4, "share of a step at batch 64 outside the forward pass", value, 0.03, how)]


def pressure(results: p.Results, work: p.Load, forced: Sequence[Answer], parted: int | None) -> list[Line]:
    """Line 6; `work` was served under pressure, `forced` are loads that preempt for sure, `parted` is how many
    sequences came out otherwise in float32."""
    quarter, ample = (p.seconds(results, p.PRESSURE, name) for name in (p.QUARTER, p.AMPLE))
    value, how = _worse_end([enough / little for little, enough in zip(quarter, ample, strict=True)], "lower")
    answers = results[p.PRESSURE, p.QUARTER]
    preemptions = statistics.median(answer["preemptions"] for answer in answers)
    most = least_slowdown(work.requests, demand_tokens(work.requests) // 4, p.STEP_TOKENS, answers[-1]["step_weights"])
    how = f"{how}; {preemptions:g} preemptions; {most:.2f} if in order of arrival the pool were always full"
    same = "sequences that differ from those with ample KV, float32"
    costs = [cost for answer in forced for cost in answer["costs"]]
    return [
        at_least(6, "throughput with KV for a quarter over ample KV", value, 0.95, how),
        *(_misjudged(mode, [ratio for kind, ratio in costs if kind == mode]) for mode in ("swap", "recompute")),
        unmeasured(6, same, 0.0, QUICK)
        if parted is None
        else at_most(
            6,
            same,
            float(parted),
            0.0,
            f"the first {p.FORCED_REQUESTS} requests of W1, with preemptions forced and not",
        ),
    ]


def footprint(found: Footprint, weight_bytes: int) -> list[Line]:
    """Line 9."""
    beyond = (found.worker_bytes - found.bare_bytes - weight_bytes) / MIB
    said = f"worker {found.worker_bytes / MIB:.0f} without its pool, bare process {found.bare_bytes / MIB:.0f}"
    start = f"median of {len(found.starts_s)}, all of `fairlane serve`, to its greeting"
    name, rest = "growth in the last nine tenths of the requests, MiB", f"{found.requests} requests"
    return [
        at_most(9, "worker's memory beyond imports, weights and pool, MiB", beyond, 300.0, said),
        at_most(9, "start-up from cached weights, s", statistics.median(found.starts_s), 10.0, start),
        at_most(9, name, found.grown_bytes / MIB, 16.0, rest)
        if found.requests >= LEAK_REQUESTS
        else unmeasured(9, name, 16.0, f"only with --requests {LEAK_REQUESTS}"),
    ]


def _misjudged(mode: str, ratios: Sequence[float]) -> Line:
    """How far actual costs are from what was predicted."""
    name = f"error of the predicted cost of preemption by {mode}, median"
    if not ratios:
        return unmeasured(6, name, 0.25, "none was forced")
    error = statistics.median(abs(ratio - 1.0) for ratio in ratios)
    return at_most(6, name, error, 0.25, f"{len(ratios)} preemptions, their ways back included")


_PARTS = {"p50": 0.5, "p95": 0.95}


def _faster(results: p.Results, name: str, peer: str) -> list[float]:
    pairs = zip(p.rates(results, name, p.OURS), p.rates(results, name, peer), strict=False)
    return [mine / theirs for mine, theirs in pairs]


def _times(results: p.Results, line: int, load_name: str, peer: str, target: float) -> Line:
    name, ratios = f"{load_name} output tokens/s, times those of {peer}", _faster(results, load_name, peer)
    if not ratios:
        return unmeasured(line, name, target, ABSENT)
    value, how = _worse_end(ratios, "lower")
    served = "" if load_name in (p.W1, p.W2) else f"; both served the {load_name}, side by side"
    return at_least(line, name, value, target, how + served)


def _interval(values: Sequence[float]) -> Interval:
    """Of ratios: taken on logarithms, so that a ratio and its inverse say the same, and none falls below zero."""
    found = interval([math.log(max(value, SMALLEST)) for value in values])
    return Interval(math.exp(found.mean), math.exp(found.low), math.exp(found.high))


def _worse_end(values: Sequence[float], end: Literal["lower", "upper"]) -> tuple[float, str]:
    """The end of the interval that is worse for us, and how it came about."""
    found = _interval(values)
    if len(values) == 1:
        return found.mean, "one round"
    value = found.low if end == "lower" else found.high
    return value, f"{end} end of {found.low:.3g} to {found.high:.3g} over {len(values)} rounds"


def _percentile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
