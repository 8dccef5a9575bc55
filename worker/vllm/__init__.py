"""Our lanes inside vLLM: `vllm --scheduler-cls fairlane.worker.vllm.lane_scheduler.LaneScheduler`.

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
