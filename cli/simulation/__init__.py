"""Request traces on the command line: recorded, played through the scheduler in virtual time, and advised upon.

    simulate.py         `simulate`: the real scheduler in virtual time over a trace
    simulate_report.py  its tables, JSON and pictures
    advise.py           `advise`: workers, targets and settings for a trace
    advise_report.py    what it shows
    record.py           `record`: what gateways record, into one trace
    inputs.py           a trace from a file, and what a worker is, for `simulate` and `advise`

Called by `fairlane`'s entry point. The simulator itself is `scheduler.simulation`.
"""
