"""Embedders: models that make a vector of each text, in place of an answer.

    pooling.py  how a model's directory says that it is one, and how its tokens' states become a vector
    runner.py   what computes the planner's steps: whole inputs, in padded batches
    open.py     model, planner and runner put together by the settings, with the model's card

Open `runner.py` first. `worker.engine.open` calls in where a model's directory is an embedder's. A job holds
one input or several; lanes, budgets, fairness and leases are those of all jobs. Nothing here keeps KV.
"""
