"""Who serves what: the loads, the engines that take part in each, and the rounds in which they take turns."""

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.common.turns import Answer, Contender, Request
from benchmarks.engine.work import ALONE_PROMPT, W2_CAP, W2_PROMPT, demand_tokens, equal, load

OURS, VLLM, OPENVINO, PLAIN = "Fairlane", "vLLM CPU", "OpenVINO GenAI", "transformers"
CONTINUOUS, STATIC_16, STATIC_32 = (f"{PLAIN}, {kind}" for kind in ("continuous", "static 16", "static 32"))
IN_STATIC, IN_RESERVE, IN_PAGED = POLICIES = tuple(
    f"{OURS} as {kind}" for kind in ("static batches", "continuous, reserved", "paged")
)
"""Our engine with the scheduling of others, at the same KV bytes."""
SLOTS = 8
"""Sequences whose longest outputs fit into the KV of these."""
EQUAL_KV_TOKENS = SLOTS * (W2_PROMPT + W2_CAP)
QUARTER, AMPLE = f"{OURS}, KV for a quarter", f"{OURS}, KV for all"
ALONE_TOKENS = 64
"""Output tokens after the first, where a request runs alone."""
FORCED_REQUESTS = 48
"""Of W1, amid which preemptions are forced."""
BATCHES = (1, 8, 32)
STEP_TOKENS = 512
"""The most that our engine computes in a step."""
URGENT, URGENT_PROMPT, URGENT_TOKENS = 24, 320, 12
"""Prompts that arrive where preemptions are forced."""
SWAPPING = 3
"""Rounds with a host pool for each one without, where there are several: two or three preemptions of a round copy
anything."""
W1, W2, FIRST, ALONE, PRESSURE = "W1", "W2", "W3, first token", "W3, alone", "W1 under pressure"


@dataclass(frozen=True)
class Entry:
    """An engine in one of its ways to serve."""

    name: str
    contender: str
    extras: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Load:
    """Requests that come at once, and who serves them. A turn is the median of `repeats`."""

    name: str
    requests: Sequence[Request]
    entries: Sequence[Entry]
    repeats: int = 1


Results = dict[tuple[str, str], list[Answer]]
"""By load and entry: one answer of each round."""


def loads(present: Mapping[str, Contender], *, quick: bool, plain_requests: int | None = None) -> list[Load]:
    """All loads with the entries of contenders that take part; transformers serves the first `plain_requests` of W1 and
    of W2, or all."""
    w1, w2 = load("w1"), load("w2")
    mine, vllm, openvino = (Entry(name, name) for name in (OURS, VLLM, OPENVINO))
    beside_memory = Entry(OURS, OURS, {"measure": "roofline"})
    continuous = Entry(CONTINUOUS, PLAIN)
    static_16, static_32 = Entry(STATIC_16, PLAIN, {"batch": 16}), Entry(STATIC_32, PLAIN, {"batch": 32})
    rules = zip(POLICIES, ("static", "reserve", "paged"), strict=True)
    shared = {"kv_tokens": EQUAL_KV_TOKENS, "slots": SLOTS}
    inner = [Entry(name, OURS, {**shared, "admission": rule}) for name, rule in rules]
    found = [
        Load(FIRST, equal(1, ALONE_PROMPT, 1), (mine, vllm, openvino), repeats=5),
        Load(ALONE, equal(1, ALONE_PROMPT, 1 + ALONE_TOKENS), (beside_memory, vllm, openvino), repeats=5),
        pressure(w1),
    ]
    if not quick:
        found += [
            Load(W1, w1, (mine, vllm, openvino, continuous, static_32)),
            Load(W2, w2, (mine, vllm, openvino, continuous, static_16, static_32, *inner)),
            *(Load(batch_name(count), equal(count, W2_PROMPT, 64), (mine, vllm, openvino)) for count in BATCHES),
        ]
    here = [replace(one, entries=[entry for entry in one.entries if entry.contender in present]) for one in found]
    return [part for one in here for part in _parts(one, plain_requests)]


def plain_name(name: str, plain_requests: int | None) -> str:
    """What of W1 or W2 transformers serves: all of it, or a load of its first requests."""
    whole = plain_requests is None or plain_requests >= len(load(name.lower()))
    return name if whole else f"first {plain_requests} of {name}"


def _parts(one: Load, plain_requests: int | None) -> list[Load]:
    """The load, and apart from it what transformers serves of it if that is not all: ours serves the same beside it."""
    plain = [entry for entry in one.entries if entry.contender == PLAIN]
    if not plain or (name := plain_name(one.name, plain_requests)) == one.name:
        return [one]
    others = [entry for entry in one.entries if entry not in plain]
    part = Load(name, one.requests[:plain_requests], [Entry(OURS, OURS), *plain])
    return [replace(one, entries=others), part]


def pressure(requests: Sequence[Request], contender: str = OURS, **extras: object) -> Load:
    """The same requests with KV for all of them, and for a quarter and the host for the rest."""
    demand = demand_tokens(requests)
    sizes = {QUARTER: {"kv_tokens": demand // 4, "host_tokens": demand}, AMPLE: {"kv_tokens": demand}}
    return Load(PRESSURE, requests, [Entry(name, contender, {**size, **extras}) for name, size in sizes.items()])


def forced(ours: Contender, requests: Sequence[Request], rounds: int = 1) -> list[Answer]:
    """Preemptions amid these requests, with KV for a quarter: by swap, and without a host pool; last of all none. Each
    has an engine of its own, which goes through all its rounds: its first predictions count too."""
    demand = demand_tokens(requests)
    urgent = equal(URGENT, URGENT_PROMPT, URGENT_TOKENS)
    quarter, whole = demand // 4, demand + demand_tokens(urgent)
    sizes = [
        *((number, (quarter, demand)) for number in range(SWAPPING * rounds if rounds > 1 else 1)),
        *((number, (quarter, 0)) for number in range(rounds)),
        (0, (whole, 0)),
    ]
    order = {"measure": "preemptions", "requests": requests, "urgent": urgent}
    return [
        ours.ask(**order, round=number, kv_tokens=kv_tokens, host_tokens=host_tokens)
        for number, (kv_tokens, host_tokens) in sizes
    ]


def batch_name(count: int) -> str:
    """A load of the scaling curve."""
    return f"batch {count}"


def arrivals_s(count: int, rate: float) -> list[float]:
    """Poisson arrivals of a fixed seed, `rate` per second."""
    chooser, at_s, found = random.Random(0), 0.0, []
    for _ in range(count):
        at_s += chooser.expovariate(rate)
        found.append(at_s)
    return found


@contextmanager
def contenders(options: Mapping[str, Any], pythons: Mapping[str, str], logs: Path) -> Iterator[dict[str, Contender]]:
    """The processes of ours, of transformers, and of the peers whose Python is named."""
    modules = {OURS: "ours", PLAIN: "plain", VLLM: "vllm_cpu", OPENVINO: "openvino_genai"}
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                Contender(name, f"benchmarks.engine.{module}", options, logs / f"{module}.log", pythons[name])
            )
            for name, module in modules.items()
            if name in pythons
        }


def take_turns(
    present: Mapping[str, Contender], todo: Sequence[Load], rounds: int, advance: Callable[[str], None]
) -> Results:
    """Warm everyone up on a few requests, then let all serve each load in turn; another one begins each round.
    Raises TurnError."""
    for contender in present.values():
        contender.serve([(prompt, 8) for prompt, _ in equal(4, 64, 1)])
    results: Results = {}
    for number in range(rounds):
        for one in todo:
            for entry in in_turn(one.entries, number):
                advance(f"{one.name}: {entry.name}")
                contender = present[entry.contender]
                answers = [contender.serve(one.requests, **entry.extras) for _ in range(one.repeats)]
                answers.sort(key=lambda answer: float(answer["seconds"]))
                results.setdefault((one.name, entry.name), []).append(answers[len(answers) // 2])
    return results


def in_turn(entries: Sequence[Entry], number: int) -> Iterator[Entry]:
    """All of them, begun with another one each round."""
    first = number % max(1, len(entries))
    yield from (*entries[first:], *entries[:first])


def seconds(results: Results, load_name: str, entry: str) -> list[float]:
    """What each round took; empty where it took no part."""
    return [float(answer["seconds"]) for answer in results.get((load_name, entry), ())]


def rates(results: Results, load_name: str, entry: str) -> list[float]:
    """Output tokens per second in each round."""
    return [answer["tokens"] / answer["seconds"] for answer in results.get((load_name, entry), ())]


def median_s(results: Results, load_name: str, entry: str) -> float:
    """Of the rounds."""
    return statistics.median(seconds(results, load_name, entry))
