"""Measurements and long proofs; each is a command of its own (`python -m benchmarks.NAME`)."""

import os

# As the worker does, before torch is imported: idle threads sleep. On busy cores spinning ones cost a factor of ten.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
