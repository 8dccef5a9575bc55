"""Compile a C++ source with its headers once per processor, and load it.

Not by `torch.utils.cpp_extension.load`: that needs ninja, and a process that is killed while it compiles leaves a lock
behind on which every later one waits for ever. Here a finished library appears under its name in one move.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

_FLAGS = ("-O3", "-march=native", "-std=c++20", "-fPIC", "-shared", "-fopenmp")
_LIMIT_S = 300.0
_MODE = 0o755
"""Nobody else may write to what is loaded."""

_log = logging.getLogger(__name__)


class BuildError(Exception):
    """There is no library; the message says why in one line."""


def load_library(source: Path, cache: Path | None = None) -> ctypes.CDLL:
    """The library made of `source` and the headers beside it, now or earlier. Raises BuildError."""
    try:
        texts = [path.read_text() for path in (source, *sorted(source.parent.glob("*.h")))]
        made_for = f"{texts} {_FLAGS} {_processor()}"
        cache = cache or Path.home() / ".cache" / "fairlane"
        library = cache / f"{source.stem}-{hashlib.sha256(made_for.encode()).hexdigest()[:16]}.so"
        cache.mkdir(mode=_MODE, parents=True, exist_ok=True)
        _check_writers(cache)
        if library.exists():
            _check_writers(library)
            with suppress(OSError):  # cut off by a crash, or made beside another C library: it is made anew
                return ctypes.CDLL(str(library))
        _compile(source, library)
        return ctypes.CDLL(str(library))
    except (OSError, RuntimeError) as error:  # nowhere to write, no home, or not loadable
        raise BuildError(str(error).partition("\n")[0]) from error


def compiler() -> str | None:
    """The C++ compiler's path, where there is one."""
    return shutil.which("g++") or shutil.which("c++")


def _check_writers(path: Path) -> None:
    """Raises BuildError where somebody else may write: what is loaded runs as this process."""
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BuildError(f"{path} is another user's, or others may write to it")


def _compile(source: Path, library: Path) -> None:
    command = compiler()
    if command is None:
        raise BuildError("there is no C++ compiler")
    _log.info("compiling %s, once for this processor", source.name)
    with tempfile.TemporaryDirectory(dir=library.parent) as directory:
        made = Path(directory) / library.name
        try:
            done = subprocess.run(
                [command, *_FLAGS, str(source), "-o", str(made)],
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"{command} was not done in {_LIMIT_S:.0f} s") from error
        if done.returncode != 0:
            raise BuildError(f"{command}: {_first_error(done.stderr)}")
        made.chmod(_MODE)
        os.replace(made, library)


def _first_error(output: str) -> str:
    lines = output.strip().splitlines() or ["failed"]
    return next((line for line in lines if "error" in line), lines[0])


def _processor() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
