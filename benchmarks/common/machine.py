"""What a benchmark was measured on: no figure goes without it."""

import os
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from benchmarks.common import hour


def cpu_name() -> str:
    """The processor, as it names itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def describe(
    packages: Iterable[str] = ("torch", "transformers", "fairlane"), others: Mapping[str, str] | None = None
) -> str:
    """Processor, cores, versions and the hour in one line: of `packages` as installed here, of `others` as they say."""
    versions = {**(others or {}), **{name: metadata.version(name) for name in packages}}
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{cpu_name()}, {os.cpu_count()} cores, Python {platform.python_version()}, {named}; {hour.describe()}"
