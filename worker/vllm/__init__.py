"""Our lanes inside vLLM: `vllm serve --scheduler-cls fairlane.worker.vllm.LaneScheduler`.

    lane_scheduler.py   the class that vLLM loads: looks, asks the policy, moves requests, and lets vLLM's own schedule
    lane_policy.py      what a request claims, the order of waiting and running work, whose turn it is in a lane
    yielding.py         which running requests yield slots and KV blocks to which waiting ones
    pace.py             how much of lower lanes' prompts a step may compute
    ranked_queue.py     vLLM's queue of waiting requests, in our order
    versions.py         the versions of vLLM whose scheduler was read

It runs in vLLM's own process and environment: it imports vllm, the standard library, msgspec, and of Fairlane the pure
policy alone; never torch, redis, or another part of the worker. All but `lane_scheduler.py` imports without vllm.

Open `lane_scheduler.py` first. What it is for and how it is started: docs/engines.md.
"""

from importlib import import_module

from fairlane.worker.vllm.versions import require_supported


def __getattr__(name: str) -> object:
    """`LaneScheduler`, once the version of vLLM is known to be one that was read: in another, what it imports may be
    missing. Raises UnsupportedVllm."""
    if name != "LaneScheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_supported(import_module("vllm").__version__)
    found: object = import_module(f"{__name__}.lane_scheduler").LaneScheduler
    return found
