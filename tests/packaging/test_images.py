"""The Dockerfiles' steps, replayed in a plain directory: with the dependencies of this environment, and, where
FAIRLANE_TEST_IMAGES is set, with those that the network brings, which takes minutes."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dockerfile import Replay, instructions, is_let_in

ROOT = Path(__file__).parents[2]
FULL = "FAIRLANE_TEST_IMAGES"
MOST_GATEWAY_BYTES = 200 * 10**6
IMAGES = {"gateway": "gateway/Dockerfile", "worker": "worker/Dockerfile", "lease-holder": "worker/remote/Dockerfile"}
READ = """\
import sys
from fairlane.gateway.dialects.tools.template_reader import ResponseTemplate
ResponseTemplate(sys.argv[1]).reader("", ())
"""
TEMPLATE = json.dumps({"start_anchor": "<a>", "fields": {"content": {"close": "</a>"}}})


@pytest.fixture(scope="module", params=IMAGES)
def replayed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Replay]]:
    place = tmp_path_factory.mktemp(request.param)
    replay = Replay(ROOT / IMAGES[request.param], ROOT, place, has_network=FULL in os.environ)
    replay.run()
    yield request.param, replay
    shutil.rmtree(place)


def in_image(replay: Replay, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A command of the image, with the variables that it sets."""
    python = replay.root / "opt/fairlane/bin/python"
    places = {"HOME": str(replay.root), "FAIRLANE_DATA_DIR": f"{replay.root}/var/lib/fairlane", "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [python, *arguments], env=places | environ, cwd=replay.root, capture_output=True, text=True, check=False
    )


@pytest.mark.thorough
def test_the_steps_leave_a_package_that_starts(replayed: tuple[str, Replay]) -> None:
    """From the image's own files: this repository is not on its path."""
    _, replay = replayed
    module = json.loads(dict(instructions(replay.dockerfile))["ENTRYPOINT"])[2]

    checked = in_image(replay, "-m", module, "--check-config", FAIRLANE_REDIS_URL="redis://store:6379")
    found = in_image(replay, "-c", f"import {module} as it; print(it.__file__)")

    assert checked.returncode == 0, checked.stderr
    assert found.stdout.startswith(f"{replay.root}/opt/fairlane/lib/")


@pytest.mark.thorough
def test_every_file_of_the_package_that_is_not_python_is_there(replayed: tuple[str, Replay]) -> None:
    """Scripts of the store, the console, native sources: what a wheel forgets unless it is told."""
    _, replay = replayed
    (installed,) = (replay.root / "opt/fairlane/lib").glob("python3*/site-packages/fairlane")
    wanted = {
        str(path.relative_to(ROOT))
        for suffix in ("lua", "html", "css", "js", "svg", "cpp")
        for room in ("gateway", "quotas", "scheduler", "worker")
        for path in (ROOT / room).rglob(f"*.{suffix}")
    }

    assert {name for name in wanted if not (installed / name).exists()} == set()


@pytest.mark.thorough
def test_nobody_but_its_user_reads_the_data_directory_and_nothing_runs_as_root(replayed: tuple[str, Replay]) -> None:
    _, replay = replayed

    assert "useradd --uid 10001" in replay.calls
    assert "install --directory --owner fairlane --group fairlane --mode 0700" in replay.calls
    assert dict(instructions(replay.dockerfile))["USER"] == "10001:10001"


@pytest.mark.thorough
def test_an_unknown_device_fails_the_build(tmp_path: Path) -> None:
    replay = Replay(ROOT / IMAGES["worker"], ROOT, tmp_path, arguments={"DEVICE": "gpu"})

    with pytest.raises(subprocess.CalledProcessError):
        replay.run()


@pytest.mark.thorough
@pytest.mark.skipif(FULL not in os.environ, reason=f"{FULL} is not set: minutes, and half a gigabyte")
def test_a_gateway_s_image_adds_less_than_it_may(replayed: tuple[str, Replay]) -> None:
    name, replay = replayed
    if name != "gateway":
        pytest.skip("workers carry torch")

    added = sum(path.lstat().st_size for path in (replay.root / "opt").rglob("*"))
    packages = in_image(
        replay, "-c", "import importlib.metadata as m; print(*(each.name for each in m.distributions()))"
    )

    assert added < MOST_GATEWAY_BYTES
    assert not {"torch", "pip", "setuptools", "hf-xet"} & {*packages.stdout.split()}
    reads = in_image(replay, "-c", READ, TEMPLATE)
    assert reads.returncode == 0, reads.stderr


@pytest.mark.parametrize(
    ("name", "is_copied"),
    [
        ("gateway/app.py", True),
        ("fairlane/gateway", True),
        ("README.md", True),
        ("gateway/__pycache__/app.pyc", False),
        ("tests/conftest.py", False),
        ("helm/values.yaml", False),
        (".fairlane/admin", False),
    ],
)
def test_what_is_no_part_of_the_package_stays_out_of_an_image(name: str, is_copied: bool) -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]

    assert is_let_in(name, rules) is is_copied
