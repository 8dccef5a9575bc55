"""Embedding models: each input yields a vector instead of generated text.

    pooling.py  reads a model directory's pooling, and turns token states into a vector
    runner.py   the `StepRunner` for embedders: whole inputs, in padded batches
    open.py     builds model, planner, runner and card from the settings

Read `runner.py` first. A job holds one or more inputs; lanes, budgets, fairness and leases are those of all jobs.
Embedders keep no KV.
"""
