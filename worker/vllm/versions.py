"""The supported versions of vLLM. The scheduler's interface is not public, so each minor version is reviewed."""

import re

# Minor versions. To add one, review what `guarded_scheduler.py` overrides and `lane_scheduler.py` calls in its
# `vllm/v1/core/sched/scheduler.py`, and run `FAIRLANE_TEST_VLLM=PYTHON pytest tests/worker/vllm`.
SUPPORTED = ("0.32",)


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
