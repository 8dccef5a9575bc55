"""The cost book: how much work the hot paths do, in counts that are the same on every machine.

    python -m benchmarks.costs            print each cost beside the book's
    python -m benchmarks.costs --write    make the book say what is counted now

Timings cannot guard a noisy machine; counts can. A call is one call of a Python or C function that Python code makes,
as `sys.setprofile` reports it; a command is one that the store executes, those inside scripts included; a sent one
excludes those.

    book.json      the accepted costs; a commit that raises one edits it and says why
    book.py        counts everything and compares it with the book
    counting.py    how calls and commands are counted
    planner.py     one plan() with 1,000, 10,000 and 100,000 waiting
    engine.py      one step of 64 rows in the engine's thread, without the forward pass
    gateway.py     a plain chat, a stream of 64 tokens, a chat of 500 + 256, one token delivered
    scripts.py     store commands of each script that requests run
    imports.py     modules that a starting gateway imports
    times.py       script time of those operations, which no test compares

`tests/benchmarks/test_costs.py` recounts them in `make test` and fails where one has grown by more than 3 %.
"""
