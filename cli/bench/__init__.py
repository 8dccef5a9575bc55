"""`fairlane bench`: load on a running gateway, and what it showed.

    command.py     `bench`, `bench compare`: arguments, and what is printed and written
    load.py        which requests are asked for and when: from a trace or from distributions, by lane and key
    prompts.py     prompts of a stated length, all different but for what a trace says is shared
    connection.py  one connection: sends a request, notes when each token of its stream comes
    run.py         closed and open loop over a pool of connections
    results.py     what is kept of each request, and what follows: percentiles, throughput, goodput
    report.py      progress, tables, two runs compared

A request goes load → prompts → run → connection → results. The wire is read by hand, since two hundred streams have to
be read by one core beside whatever serves them. Open `run.py` first.
"""
