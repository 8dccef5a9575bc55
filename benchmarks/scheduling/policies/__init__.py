"""The published policies to compare with, by name. Each file names its source and where it deviates from it."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks.scheduling.policies.bands import Bands
from benchmarks.scheduling.policies.base import Engine
from benchmarks.scheduling.policies.clairvoyant import Clairvoyant
from benchmarks.scheduling.policies.edf import Edf
from benchmarks.scheduling.policies.fcfs_sarathi import FcfsSarathi
from benchmarks.scheduling.policies.fcfs_vllm import FcfsVllm
from benchmarks.scheduling.policies.hygen import HyGen
from benchmarks.scheduling.policies.mlfq import Mlfq
from benchmarks.scheduling.policies.niyama import Niyama
from benchmarks.scheduling.policies.priority_sglang import PrioritySglang
from benchmarks.scheduling.policies.priority_vllm import PriorityVllm
from benchmarks.scheduling.policies.setup import Setup
from benchmarks.scheduling.policies.vtc import Vtc

__all__ = ["POLICIES", "Engine", "Setup"]

POLICIES: Mapping[str, Callable[[Setup], Engine[Any]]] = {
    "fcfs-vllm": FcfsVllm,
    "fcfs-sarathi": FcfsSarathi,
    "priority-vllm": PriorityVllm,
    "priority-sglang": PrioritySglang,
    "edf": Edf,
    "mlfq": Mlfq,
    "vtc": Vtc,
    "vtc-oracle": partial(Vtc, oracle=True),
    "bands": Bands,
    "niyama": Niyama,
    "hygen": HyGen,
    "clairvoyant": Clairvoyant,
}
"""`vtc-oracle` and `clairvoyant` need `Setup.output_tokens`; `niyama` uses it where it is there."""
