"""The engine: runs one step after another on one device, called by one thread.

    engine.py      `Engine.step`: plan, run, learn, report, and the `StepRunner` protocol. Needs no torch
    build.py       builds model, cache, planner and runner, and measures them before the first request
    open.py        builds the same from the settings, with the model's card
    runner.py      our runner: turns a step plan into tensors, a forward pass and sampled tokens
    row_layout.py  a step's rows as arrays; the block tables in memory
    kv_cache.py    the paged KV cache: device pool, pinned host pool, and their sizes
    transfer.py    swaps: block copies between the two pools
    sampling.py    samples the next token of every row: penalties, filters, draw, log-probabilities

Read `engine.py` first. `worker.engine_thread` calls it. The policy is in `scheduler.planner`, which decides what each
step computes and who owns which blocks. Nothing here knows the store, the queue or asyncio.
"""
