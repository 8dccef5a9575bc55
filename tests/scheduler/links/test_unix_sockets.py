"""Unix sockets of gateways: private from their first moment, and removed once nobody listens on them."""

import socket
import stat
from pathlib import Path

import pytest

from fairlane.scheduler.links import unix_sockets
from fairlane.scheduler.links.listener import LinkListener
from tests.scheduler.links.test_links import SECRET, Gateway, dialling, known, until

pytestmark = pytest.mark.anyio


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def left_behind(path: Path) -> None:
    """What a killed gateway leaves."""
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))


async def test_sockets_of_killed_gateways_are_removed_and_those_of_running_ones_stay(tmp_path: Path) -> None:
    running = tmp_path / "running.sock"
    opened = LinkListener("g", known(SECRET), Gateway())
    await opened.listen_unix(running)
    left_behind(tmp_path / "killed.sock")
    left_behind(tmp_path / "not-ours")
    (tmp_path / "file.sock").touch()

    async with dialling(f"unix://{running}") as (_, worker):
        await until(worker, lambda: worker.opened)
        unix_sockets.remove_dead(tmp_path, "*.sock")
        async with dialling(f"unix://{running}") as (_, second):
            await until(second, lambda: second.opened)

    assert names(tmp_path) == {"running.sock", "not-ours", "file.sock"}
    assert opened.refused == 0  # nothing was said on the connection that tried the socket
    await opened.aclose()
    assert not running.exists()


def test_a_socket_has_its_name_only_while_it_accepts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a gateway that starts beside another would take it for a killed one's."""
    path, seen = tmp_path / "g.sock", []
    listen = socket.socket.listen

    class Watched(socket.socket):
        def listen(self, *backlog: int) -> None:
            seen.append(path.exists())
            listen(self, *backlog)

    monkeypatch.setattr(socket, "socket", Watched)
    with unix_sockets.listening(path):
        unix_sockets.remove_dead(tmp_path, "*.sock")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    assert seen == [False]


async def test_the_socket_of_an_earlier_process_of_that_name_is_replaced(tmp_path: Path) -> None:
    left_behind(tmp_path / "g.sock")
    opened = LinkListener("g", known(SECRET), Gateway())
    await opened.listen_unix(tmp_path / "g.sock")

    async with dialling(f"unix://{tmp_path / 'g.sock'}") as (_, worker):
        await until(worker, lambda: worker.opened)
    await opened.aclose()
