"""Request traces on the command line: recording, simulation and sizing.

    simulate.py         `simulate`: runs the real scheduler in virtual time over a trace
    simulate_report.py  its tables, JSON and plots
    fleet.py            the fleet of `simulate --gateways --shards`
    advise.py           `advise`: workers, targets and settings for a trace
    advise_report.py    its tables and JSON
    record.py           `record`: collects what gateways record into one trace
    inputs.py           reads traces and worker calibrations for `simulate` and `advise`

Called by the entry point of `fairlane`. The simulator itself is `scheduler.simulation`."""
