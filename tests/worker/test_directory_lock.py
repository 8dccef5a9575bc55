"""What a directory keeps is made by one process; one that died leaves no lock behind."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlane.worker.directory_lock import locked

HOLDER = """
import sys
from pathlib import Path
from fairlane.worker.directory_lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_nobody_else_has_it_meanwhile(tmp_path: Path) -> None:
    other = os.open(tmp_path, os.O_RDONLY)
    try:
        with locked(tmp_path), pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(other)


def test_a_process_that_is_killed_leaves_none_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.kill()

    with locked(tmp_path):
        assert list(tmp_path.iterdir()) == []
