"""The wheel and the sdist of a clone, built by the backend that pyproject.toml names, without the network."""

import subprocess
import sys
import tarfile
from pathlib import Path

from tests.support.dockerfile import copy_tracked

BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""


def build(kind: str, source: Path, target: Path) -> Path:
    """`kind`: build_wheel or build_sdist. The file, in `target`."""
    target.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, kind, str(target)], cwd=source, capture_output=True, text=True, check=True
    )
    return target / done.stdout.splitlines()[-1]


def clone(root: Path, target: Path) -> Path:
    """What a clone of this working tree would have."""
    copy_tracked(root, target)
    return target


def unpack(sdist: Path, target: Path) -> Path:
    """The folder in it."""
    with tarfile.open(sdist) as archive:
        archive.extractall(target, filter="data")
    (found,) = target.iterdir()
    return found
