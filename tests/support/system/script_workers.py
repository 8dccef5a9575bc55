"""Worker processes that speak from a script, each under a name of its own: started, killed, started again."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fairlane.common.child_processes import die_with_parent

LEASE_S = 1.0


@contextmanager
def script_worker(url: str, *, blocks: int = 256) -> Iterator[subprocess.Popen[bytes]]:
    """One that runs until the block ends, or until it is killed. `blocks`: of 16 tokens, in its pool."""
    command = [sys.executable, "-m", "tests.support.system.script_worker", url, str(round(LEASE_S * 1e3)), str(blocks)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")}
    started = subprocess.Popen(command, env=environ, preexec_fn=die_with_parent())
    try:
        yield started
    finally:
        started.kill()
        started.wait()
