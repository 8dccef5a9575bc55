"""Our lanes inside vLLM: `vllm serve --scheduler-cls fairlane.worker.vllm.LaneScheduler`.

    lane_scheduler.py     the class that vLLM loads: asks the policy and moves requests before vLLM schedules
    guarded_scheduler.py  its base: overrides vLLM's methods, and falls back to vLLM's own order after a fault
    lane_policy.py        a request's claim, the order of waiting and running work, and fairness within a lane
    yielding.py           selects the running requests that yield slots and KV blocks to waiting ones
    pace.py               bounds the lower lanes' prompt tokens in a step
    ranked_queue.py       vLLM's queue of waiting requests, in our order

It runs in vLLM's own process and environment. It imports vllm, the standard library, msgspec, and of Fairlane only the
pure policy; never torch, redis, or another part of the worker. All but the two schedulers can be imported without
vllm. Read `lane_scheduler.py` first. docs/engines.md explains its purpose and how to start it.
"""

import re
from importlib import import_module, metadata

# The scheduler's interface is not public, so each minor version is reviewed. To add one, record its interface with
# `python -m tests.worker.vllm.interface`, review what changed in `vllm/v1/core/sched/scheduler.py`, run
# `FAIRLANE_TEST_VLLM=PYTHON pytest tests/worker/vllm`, and add it to the table of docs/engines.md.
SUPPORTED = ("0.32", "0.33")
# What installs this package: all of Fairlane, or this package and its imports alone (release/vllm_wheel.py).
DISTRIBUTIONS = ("fairlane", "fairlane-vllm")


class UnsupportedVllm(RuntimeError):
    """The installed version of vLLM is not supported."""


def require_supported(version: str) -> None:
    """Raise UnsupportedVllm unless the version belongs to a supported minor version."""
    found = re.match(r"v?(\d+\.\d+)(?![\d])", version)
    if found is None or found[1] not in SUPPORTED:
        raise UnsupportedVllm(
            f"LaneScheduler supports vLLM {', '.join(SUPPORTED)}, not {version}: "
            "start vLLM without --scheduler-cls, or install a version of Fairlane that supports it."
        )


class MixedInstallation(RuntimeError):
    """Two distributions of different versions have overwritten each other's files."""


def require_one_version() -> None:
    """Raise MixedInstallation if `fairlane` and `fairlane-vllm`, which share files, are installed and differ."""
    found = {one.name: one.version for name in DISTRIBUTIONS for one in metadata.distributions(name=name)}
    if len({*found.values()}) > 1:
        both = " and ".join(f"{name} {version}" for name, version in sorted(found.items()))
        raise MixedInstallation(
            f"{both} are installed together and overwrite each other's files: "
            f"run `pip uninstall {' '.join(DISTRIBUTIONS)}`, then install one of them."
        )


def __getattr__(name: str) -> object:
    """Load `LaneScheduler` after checking vLLM's version, since others may lack its imports.

    Raises UnsupportedVllm, MixedInstallation."""
    if name != "LaneScheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_one_version()
    require_supported(import_module("vllm").__version__)
    found: object = import_module(f"{__name__}.lane_scheduler").LaneScheduler
    return found
