"""The engines that others run, behind our lanes or with them inside: `python -m benchmarks.engines`.

    arms.py      the servers that are compared: how each is started, and how a request reaches it
    load.py      a flood of the throughput lane beside single requests of the latency lane, and what became of both
    tax.py       what Fairlane takes of a saturated engine's tokens, before `stepping.py`, whose steps take 20 ms

A further way to serve is one more arm.
"""
