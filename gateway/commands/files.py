"""Files that a command writes: whole, or not at all."""

import os
from pathlib import Path

from gateway.commands.client import CommandError


def check_writable(file: Path) -> None:
    """A file could be made there, as far as one can tell beforehand. Raises CommandError."""
    if file.is_dir():
        raise CommandError(f"{file}: is a directory")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise CommandError(f"{file}: cannot be written (no directory to write to)")


def check_directory(directory: Path) -> None:
    """It is there or could be made, as far as one can tell beforehand. Raises CommandError."""
    nearest = next(place for place in (directory, *directory.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise CommandError(f"{nearest}: is no directory")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise CommandError(f"{directory}: cannot be written")


def make_directory(directory: Path) -> None:
    """With all above it. Raises CommandError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"{directory}: cannot be made ({error.strerror or type(error).__name__})") from None


def write_whole(file: Path, content: bytes) -> None:
    """Write beside the file, then put it in its place. Raises CommandError."""
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(file)
    except OSError as error:
        raise CommandError(f"{file}: cannot be written ({error.strerror or type(error).__name__})") from None
    finally:
        beside.unlink(missing_ok=True)
