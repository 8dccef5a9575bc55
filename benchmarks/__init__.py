"""Measurements and long proofs; each is a command of its own (`python -m benchmarks.NAME`)."""
