"""Archives that depend on nothing but their content: `python -m release.archives FILE…` rewrites `.tar.gz` and `.tgz`,
with the time of SOURCE_DATE_EPOCH, the files in order, and no owners."""

import gzip
import io
import os
import sys
import tarfile
from pathlib import Path


def rewrite(archive: Path, at: int) -> None:
    """Write the archive anew. `at`: the time of every file, in seconds since 1970."""
    with tarfile.open(archive) as old:
        files = sorted((member.name, member.mode, old.extractfile(member)) for member in old if member.isfile())
        contents = [(name, mode, file.read()) for name, mode, file in files if file is not None]
    with (
        archive.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=at) as packed,
        tarfile.open(fileobj=packed, mode="w") as new,
    ):
        for name, mode, content in contents:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), at, 0o755 if mode & 0o100 else 0o644
            new.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        rewrite(Path(argument), int(os.environ["SOURCE_DATE_EPOCH"]))
