"""The engine: one step after another, on one device, called by one thread.

    engine.py      `Engine.step`: plan, run, learn, report; what it asks of whatever computes (`StepRunner`). No torch
    build.py       model, cache, planner and runner put together, and measured before the first request
    open.py        the same by the settings, with the model's card
    runner.py      our runner: a step plan becomes tensors, a forward pass, drawn tokens
    row_layout.py  a step's rows in arrays; the block tables in memory
    kv_cache.py    the paged KV cache: device pool and pinned host pool, and their sizes
    transfer.py    swaps: block copies between the two pools
    sampling.py    the next token of every row: penalties, filters, draw, log-probabilities

Open `engine.py` first. `worker.engine_thread` calls in; the policy is `scheduler.planner`, which decides what each step
computes and whose blocks are whose. Below are the models, attention and native kernels, which use the cache and the row
layout alone. Nothing here knows the store, the queue or asyncio.
"""
