"""The engines that others run, behind the lanes or with them inside: `python -m benchmarks.engines`.

    arms.py      the servers that are compared: how each is started, and how a request reaches it
    load.py      a flood of the throughput lane beside single requests of the latency lane, and what became of both

A further way to serve, such as a lease holder before the same engine, is an arm more.
"""
