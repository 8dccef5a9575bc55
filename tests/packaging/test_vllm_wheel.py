"""The wheel of fairlane-vllm: what LaneScheduler imports, alone and beside the whole of fairlane."""

import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from release import version, vllm_wheel

ROOT = Path(__file__).parents[2]
Run = Callable[[str], str]
IMPORTS = """
import sys
from fairlane.worker.vllm import require_supported
from fairlane.worker.vllm import lane_policy, pace, ranked_queue, settings, yielding
require_supported("0.33.0")
print(len(settings.read_settings({"fairlane": {"lanes": {"latency": {"tpot_ms": 50}}}}, {}).lanes.lanes()))
print(sorted({name.partition(".")[0] for name in sys.modules} & {"msgspec", "yaml", "redis", "torch", "starlette"}))
"""
LOADS = """
import sys, types
sys.modules["vllm"] = types.ModuleType("vllm")
sys.modules["vllm"].__version__ = "0.99.0"
import fairlane.worker.vllm
try:
    fairlane.worker.vllm.LaneScheduler
except RuntimeError as error:
    print(type(error).__name__, error)
"""


def test_it_has_the_scheduler_and_no_other_part_of_the_worker() -> None:
    names = {*vllm_wheel.modules()}

    assert {"fairlane.worker.vllm.lane_scheduler", "fairlane.scheduler.planner.costs"} <= names
    assert {name.split(".")[2] for name in names if name.startswith("fairlane.worker.")} == {"vllm"}
    assert {name.split(".")[1] for name in names - {"fairlane"}} == {"common", "scheduler", "worker"}


def test_it_requires_msgspec_within_the_bounds_of_the_whole() -> None:
    (needed,) = vllm_wheel.requirements()

    assert needed.startswith("msgspec>=")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make dist-vllm` does."""
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "release.vllm_wheel", str(target)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of an environment that has it and msgspec, installed without the network."""
    directory = tmp_path_factory.mktemp("env")
    venv.create(directory, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    return site


@pytest.fixture
def run(site: Path) -> Run:
    """Run a program there."""

    def ran(program: str) -> str:
        command = [str(site.parents[2] / "bin" / "python"), "-I", "-c", program]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

    return ran


@pytest.mark.thorough
def test_its_files_are_those_of_the_sources(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
        licences = {name.rpartition("/")[2] for name in archive.namelist() if "/licenses/" in name}

    assert packed == {str(path.relative_to(ROOT)): path.read_bytes() for path in vllm_wheel.modules().values()}
    assert licences == {"LICENSE", "NOTICE"}


@pytest.mark.thorough
def test_its_metadata_name_one_requirement_and_the_version_of_the_whole(site: Path) -> None:
    (found,) = metadata.distributions(name="fairlane-vllm", path=[str(site)])

    assert len(found.requires or ()) == 1
    assert found.version == version.project()["version"]


@pytest.mark.thorough
def test_the_policy_is_imported_with_msgspec_alone(run: Run) -> None:
    assert run(IMPORTS).splitlines() == ["2", "['msgspec']"]


@pytest.mark.thorough
def test_an_unsupported_vllm_is_refused(run: Run) -> None:
    assert run(LOADS).startswith("UnsupportedVllm LaneScheduler supports vLLM ")


@pytest.mark.thorough
@pytest.mark.parametrize("is_same", [True, False], ids=["the same version", "another version"])
def test_beside_the_whole_of_another_version_it_is_refused(is_same: bool, site: Path, run: Run) -> None:
    number = version.project()["version"] if is_same else "0.0.1"
    whole = site / f"fairlane-{number}.dist-info"
    whole.mkdir()
    (whole / "METADATA").write_text(f"Metadata-Version: 2.4\nName: fairlane\nVersion: {number}\n")
    try:
        printed = run(LOADS)
    finally:
        (whole / "METADATA").unlink()
        whole.rmdir()

    assert printed.startswith("UnsupportedVllm" if is_same else "MixedInstallation fairlane 0.0.1 and fairlane-vllm ")
    assert is_same or "pip uninstall fairlane fairlane-vllm" in printed
