"""`fairlane bench`: load a running gateway and report latency, throughput and goodput.

    command.py     `bench`, `bench compare`: arguments and output
    load.py        the requests with their times, lanes, keys and prompts: from a trace or from distributions
    connection.py  one connection: sends a request, records when each token of its stream arrives
    run.py         closed and open loop over a pool of connections
    results.py     measurements of each request, and statistics: percentiles, throughput, goodput
    report.py      progress, tables, comparison of two runs

A request passes load → run → connection → results. The HTTP stream is parsed by hand, since one core must
read two hundred streams alongside the server under test. Start with `run.py`."""
