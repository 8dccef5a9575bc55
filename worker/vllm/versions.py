"""The versions of vLLM whose scheduler was read. Its interface is not public: each minor version is checked anew."""

import re

SUPPORTED = ("0.32",)
"""Minor versions. To add one: read its `vllm/v1/core/sched/scheduler.py` for what `lane_scheduler.py` overrides and
calls, and run `FAIRLANE_TEST_VLLM=PYTHON pytest tests/worker/vllm`."""


class UnsupportedVllm(RuntimeError):
    """This vLLM's scheduler was never read."""


def require_supported(version: str) -> None:
    """Raises UnsupportedVllm for a version that is not of a supported minor version."""
    found = re.match(r"v?(\d+\.\d+)(?![\d])", version)
    if found is None or found[1] not in SUPPORTED:
        raise UnsupportedVllm(
            f"LaneScheduler knows vLLM {', '.join(SUPPORTED)}, and this is {version}: "
            "start vLLM without --scheduler-cls, or install a version of Fairlane that knows it."
        )
