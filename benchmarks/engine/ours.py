"""Our engine, in a process of its own. Besides serving it measures what only it can tell of itself.

The scheduling of others can be played inside it, on the same arithmetic and the same KV bytes: what is handed over
when makes static batches of a loop that serves continuously.
"""

import functools
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.leases import greedy_lease
from benchmarks.common.turns import THREADS, Answer, Order, Request, answer_turns
from benchmarks.engine.overhead import TimedModel, overhead
from benchmarks.engine.preempting import preempt
from benchmarks.engine.programme import STEP_TOKENS
from benchmarks.engine.work import demand_tokens
from fairlane.common.gc_tuning import OF_A_WORKER, collect_seldom
from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.steps import StepFeatures
from fairlane.scheduler.protocol.messages import Preempted
from fairlane.worker.engine.build import calibrate, planner_for
from fairlane.worker.engine.engine import Engine
from fairlane.worker.engine.runner import Runner
from fairlane.worker.kv.cache import KVCache
from fairlane.worker.model.files import resolve
from fairlane.worker.model.interface import Model
from fairlane.worker.model.select import load_fastest

BLOCK_SIZE = 16
SMALLEST_REST_S = 0.001
GIB = 2**30
READS = 7


class Ledger(CostModel):
    """A cost model that has another one beside it, which forgets no step."""

    def __init__(self) -> None:
        super().__init__()
        self.lifelong = CostModel(forgetting=1.0)

    def observe(self, plan: StepFeatures, run_ms: float, copied_blocks: int, copy_ms: float) -> None:
        """Both learn."""
        self.lifelong.observe(plan, run_ms, copied_blocks, copy_ms)
        super().observe(plan, run_ms, copied_blocks, copy_ms)


Admit = Callable[[int, int], int]
"""Of how many that wait, while how many are live, how many to hand over."""


def admission(name: str, slots: int) -> Admit:
    """`paged` hands over all at once; `reserve` keeps at most `slots` live, each with room for its longest output;
    `static` fills the slots only once all are empty."""
    rules: dict[str, Admit] = {
        "paged": lambda waiting, _: waiting,
        "reserve": lambda waiting, live: min(waiting, slots - live),
        "static": lambda waiting, live: 0 if live else min(waiting, slots),
    }
    return rules[name]


@dataclass
class Served:
    """What came of a run."""

    seconds: float = 0.0
    outputs: dict[str, list[int]] = field(default_factory=dict)
    latencies_s: list[float] = field(default_factory=list)
    """From arrival to the last token."""
    preemptions: int = 0


def serve(engine: Engine, requests: Sequence[Request], admit: Admit, arrivals_s: Sequence[float] = ()) -> Served:
    """Serve all to their ends; without arrivals all come at once. Each run is a tenant of its own, so that no prefix
    of an earlier one is found."""
    found = Served(outputs={str(number): [] for number in range(len(requests))})
    came = dict(enumerate(arrivals_s or [0.0] * len(requests)))
    waiting, live, began = deque(sorted(came, key=lambda number: came[number])), 0, time.perf_counter()
    tenant = f"run-{time.monotonic_ns()}"
    while waiting or engine.has_work:
        now_s = time.perf_counter() - began
        due = sum(1 for number in waiting if came[number] <= now_s)
        for _ in range(admit(due, live)):
            number = waiting.popleft()
            engine.add(greedy_lease(number, *requests[number], tenant=tenant), time.monotonic() * 1e3)
            live += 1
        if not engine.has_work:
            time.sleep(max(SMALLEST_REST_S, came[waiting[0]] - now_s))
            continue
        report = engine.step(time.monotonic() * 1e3)
        for one in report.outcome.produced:
            found.outputs[one.seq.job_id].append(one.token_id)
        found.preemptions += sum(isinstance(event, Preempted) for event in report.plan.events)
        for ended in report.outcome.ended:
            live -= 1
            found.latencies_s.append(time.perf_counter() - began - came[int(ended.job_id)])
    found.seconds = time.perf_counter() - began
    return found


class Ours:
    """One model and its engines, one for each size of the pools."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        torch.set_num_threads(THREADS)
        self._files = resolve(options["model"], Path(options["models_dir"]))
        self._model = TimedModel(load_fastest(self._files, dtype=options["dtype"]))
        self._max_sequences = int(options["max_sequences"])
        self._engines: dict[tuple[int, int], Engine] = {}
        self._ledgers: dict[tuple[int, int], Ledger] = {}
        collect_seldom(OF_A_WORKER)

    def answer(self, order: Order) -> Answer:
        """Do what is asked for: serve requests, or measure."""
        match order.get("measure"):
            case "preemptions":
                return self._preempt(order)
            case "overhead":
                return overhead(self._model, order["requests"])
            case "roofline":
                return self._beside_memory(order)
        return self._serve(order)

    def _serve(self, order: Order) -> Answer:
        requests: Sequence[Request] = order["requests"]
        sizes = (order.get("kv_tokens") or demand_tokens(requests), order.get("host_tokens", 0))
        engine = self.engine(sizes)
        done, ledger = self._model.forward_s, self._ledgers[sizes]
        rule = admission(order.get("admission", "paged"), order.get("slots", 0))
        served = serve(engine, requests, rule, order.get("arrivals_s", ()))
        engine.planner.check_integrity()
        return {
            "seconds": served.seconds,
            "tokens": sum(map(len, served.outputs.values())),
            "latencies_s": served.latencies_s,
            "preemptions": served.preemptions,
            "step_weights": ledger.lifelong.step_weights(),
            "forward_s": self._model.forward_s - done,
            "outputs": list(served.outputs.values()) if order.get("outputs") else [],
        }

    def _beside_memory(self, order: Order) -> Answer:
        """Serve, and tell what a step reads of memory, and what that gave before and after: neighbours make it vary."""
        before, answer, after = read_bandwidth(), self._serve(order), read_bandwidth()
        rate = statistics.harmonic_mean((before, after))
        return {**answer, "bytes_per_s": rate, "weight_bytes": self._weight_bytes()}

    def _preempt(self, order: Order) -> Answer:
        """On an engine that is new in the first round."""
        sizes, number = (order["kv_tokens"], order["host_tokens"]), order["round"]
        if not number:
            self._engines.pop(sizes, None)
        engine = self.engine(sizes)
        tenant = f"round-{number}"  # finds no prefix of an earlier one
        found = preempt(engine, self._ledgers[sizes], order["requests"], order["urgent"], tenant)
        engine.planner.check_integrity()
        return {"costs": [[cost.mode, cost.ratio] for cost in found.costs], "outputs": found.outputs}

    def engine(self, sizes: tuple[int, int]) -> Engine:
        """With pools of so many tokens: on the device, on the host."""
        if sizes not in self._engines:
            blocks, host_slots = (tokens // BLOCK_SIZE for tokens in sizes)
            self._ledgers[sizes] = Ledger()
            self._engines[sizes] = _build(self._model, blocks, host_slots, self._max_sequences, self._ledgers[sizes])
        return self._engines[sizes]

    @functools.cache  # noqa: B019 - there is one of this class
    def _weight_bytes(self) -> int:
        """Of the weights that a step reads: each once, in the dtype that computes."""
        from safetensors import safe_open

        count = 0
        for path in self._files.directory.glob("*.safetensors"):
            with safe_open(path, framework="pt") as file:
                count += sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118 - no mapping
        return count * self._model.shape.dtype.itemsize


def _build(model: Model, blocks: int, host_slots: int, max_sequences: int, costs: CostModel) -> Engine:
    cache = KVCache(model.shape, blocks=blocks, host_slots=host_slots, block_size=BLOCK_SIZE, device=model.device)
    planner = planner_for(cache, costs, max_sequences=max_sequences, max_step_tokens=STEP_TOKENS)
    runner = Runner(model, cache)
    calibrate(runner, costs, max_sequences=max_sequences, max_step_tokens=STEP_TOKENS)
    return Engine(planner, runner)


def read_bandwidth() -> float:
    """Bytes per second that the threads read from memory: the best of a few passes over a GiB."""
    memory, best_s = torch.ones(GIB // 4), float("inf")
    for _ in range(READS):
        began = time.perf_counter()
        memory.sum()
        best_s = min(best_s, time.perf_counter() - began)
    return GIB / best_s


if __name__ == "__main__":
    answer_turns(lambda options: Ours(options).answer, "fairlane", "torch")
