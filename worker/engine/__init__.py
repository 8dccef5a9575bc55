"""The engine: runs one step after another on one device, called by one thread.

    engine.py    `Engine.step`: plan, run, learn, report, and the `StepRunner` protocol. Needs no torch
    build.py     builds model, cache, planner and runner, and measures them before the first request
    runner.py    our runner: turns a step plan into tensors, a forward pass and sampled tokens
    grammar.py   compiles grammars, and fills the token masks of constrained choices
    sampling.py  samples the next token of every row: penalties, filters, draw, log-probabilities

Read `engine.py` first. `worker.engine_thread` calls it. The policy is in `scheduler.planner`, which decides what each
step computes and who owns which blocks. Independent of the store, the queue and asyncio.
"""
