"""Request traces: recordings of a gateway's requests, their files, and simulations of them for operators.

    recorder.py          writes ended requests to a file in batches: sizes and pseudonyms, never content
    files.py             the folder of recorded and uploaded traces, and their recent readers
    simulator.py         one simulation at a time, in a child process with bounded time and memory
    simulate_process.py  the child process
    figures.py           a simulation's result: figures by lane and tenant, and data for plots

This package never sees a request's text, and uses the store only for the key of the pseudonyms."""
