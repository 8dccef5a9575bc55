"""The supervisor: children are kept alive, stopped in time, and never outlive it."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from fairlane.gateway import processes as supervisor
from fairlane.gateway.processes import Child, ChildRefused, check_config, supervise

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
LIMIT_S = 20.0


def module(fleet_cache: Path, name: str, body: str) -> dict[str, str]:
    """An environment in which `python -m <name>` runs `body`."""
    (fleet_cache / f"{name}.py").write_text(body)
    return {**os.environ, "PYTHONPATH": str(fleet_cache)}


async def next_line(path: Path) -> str:
    """What a child writes to a named pipe next."""
    return await asyncio.wait_for(asyncio.to_thread(path.read_text), LIMIT_S)


async def test_a_child_that_dies_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_BACKOFF_S", 0.01)
    os.mkfifo(tmp_path / "pipe")
    body = "import os, sys, signal\nopen(sys.argv[1], 'w').write(str(os.getpid()))\nsignal.pause()"
    child = Child("mortal", [str(tmp_path / "pipe")], module(tmp_path, "mortal", body), LIMIT_S)
    alive = asyncio.create_task(child.keep_alive())

    first = int(await next_line(tmp_path / "pipe"))
    os.kill(first, signal.SIGKILL)
    second = int(await next_line(tmp_path / "pipe"))

    assert second != first
    await child.stop()
    await asyncio.wait_for(alive, LIMIT_S)


async def test_a_child_that_will_not_stop_is_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    body = (
        "import signal, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(sys.argv[1], 'w').write('deaf')\nwhile True: signal.pause()"
    )
    child = Child("deaf", [str(tmp_path / "pipe")], module(tmp_path, "deaf", body), stop_timeout_s=0.1)
    alive = asyncio.create_task(child.keep_alive())
    assert await next_line(tmp_path / "pipe") == "deaf"

    await child.stop()

    await asyncio.wait_for(alive, LIMIT_S)
    assert child.process is not None
    assert child.process.returncode == -signal.SIGKILL


async def test_a_child_that_is_told_to_stop_while_it_is_started_does_not_stay(tmp_path: Path) -> None:
    child = Child("late", [], module(tmp_path, "late", "import signal\nsignal.pause()"), LIMIT_S)
    alive = asyncio.create_task(child.keep_alive())
    await asyncio.sleep(0)  # it is being started

    await child.stop()

    await asyncio.wait_for(alive, LIMIT_S)
    assert child.process is not None
    assert child.process.returncode == -signal.SIGKILL


async def test_a_row_stops_together_and_before_the_next(tmp_path: Path) -> None:
    for name in ("up", "told"):
        os.mkfifo(tmp_path / name)
    body = (  # each of the first row ends only where the other one ends too
        "import os, signal, sys\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "open('up', 'w').write('up')\nsignal.sigwait([signal.SIGTERM])\nrole = sys.argv[1]\n"
        "if role == 'tells': open('told', 'w').write('done')\n"
        "if role == 'hears': open('done', 'w').write(open('told').read())\n"
        "if role == 'last': sys.exit(0 if os.path.exists('done') else 1)\n"
    )
    environ = module(tmp_path, "polite", f"import os\nos.chdir({str(tmp_path)!r})\n{body}")
    rows = [[Child("polite", [role], environ, LIMIT_S) for role in row] for row in (["tells", "hears"], ["last"])]
    stop = asyncio.Event()
    supervising = asyncio.create_task(supervise(rows, stop))
    heard = ""
    while len(heard) < len("up" * 3):
        heard += await next_line(tmp_path / "up")

    stop.set()
    await asyncio.wait_for(supervising, LIMIT_S)

    assert [[child.process and child.process.returncode for child in row] for row in rows] == [[0, 0], [0]]


async def test_a_child_that_refuses_its_settings_is_not_started_again(tmp_path: Path) -> None:
    child = Child("unset", [], module(tmp_path, "unset", "raise SystemExit(2)"), LIMIT_S)

    with pytest.raises(ChildRefused, match="unset"):
        await asyncio.wait_for(child.keep_alive(), LIMIT_S)


async def test_check_config_passes_on_the_complaint(tmp_path: Path) -> None:
    body = "import sys\nsys.exit('setting port: expected `int` <= 65535')"
    environ = module(tmp_path, "picky", body)

    assert await check_config("picky", [], environ) == "setting port: expected `int` <= 65535"
    assert await check_config("easy", [], module(tmp_path, "easy", "")) == ""
