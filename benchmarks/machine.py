"""What a benchmark was measured on: no figure goes without it."""

import os
import platform
from importlib import metadata
from pathlib import Path


def cpu_name() -> str:
    """The processor, as it names itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def describe() -> str:
    """Processor, cores and versions in one line."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "fairlane"))
    return f"{cpu_name()}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}"
