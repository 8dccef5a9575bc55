"""The real scheduler in virtual time: `simulate.py` first. `fairlane simulate` and the benchmarks call in.

`workload.py` and `synthetic_tenants.py` say what comes, `calibration.py` what a step takes, `results.py` what became
of it.
"""
