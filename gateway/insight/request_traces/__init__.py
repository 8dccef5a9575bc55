"""Request traces: what a gateway records of its requests, the files of it, and simulations of them for operators.

    recorder.py          requests that have ended, in batches to a file: sizes and pseudonyms, never content
    pseudonyms.py        keyed names of tenants and of prompts' blocks
    files.py             the folder: recorded and uploaded traces, each bounded, the oldest going first
    reads.py             who has read which of late, for the audit log
    simulator.py         one simulation at a time, in a child with bounds on time and memory
    simulate_process.py  the child
    figures.py           what it answers: figures by lane and tenant, and data for plots

The endpoints of generation tell the recorder, the admin API reads the files and asks the simulator. Never knows a
request's text, nor the store but for the key of the pseudonyms.
"""
