"""What a gateway imports before it serves."""

import subprocess
import sys

COUNTED = """
import sys
before = len(sys.modules)
import fairlane.gateway.__main__, fairlane.gateway.server, fairlane.gateway.runtime.resources
print(len(sys.modules) - before)
"""


def measure() -> dict[str, float]:
    """Modules by entry of the book; in a process of its own, which has imported nothing else."""
    done = subprocess.run([sys.executable, "-c", COUNTED], capture_output=True, text=True, check=True, timeout=60.0)
    return {"starting a gateway, modules": float(done.stdout)}
