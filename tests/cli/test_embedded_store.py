"""The embedded store: durable, alone on its directory, and never an orphan."""

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from fairlane.cli.embedded_store import EmbeddedStore, StoreError
from tests.support.store.crash import crash

pytestmark = pytest.mark.slow


def test_acknowledged_writes_survive_a_kill(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path)
    store.start()
    with redis.from_url(store.url) as client:
        client.set("answer", 42)
    crash(store)

    again = EmbeddedStore(tmp_path)
    again.start()

    with redis.from_url(again.url) as client:
        assert client.get("answer") == b"42"
    again.stop()


def test_stop_ends_the_server_and_removes_its_socket(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path)
    store.start()

    store.stop()

    assert store.process.poll() is not None
    assert not store.socket.exists()


def modes(directory: Path) -> set[int]:
    """Permissions of all below a directory, but for whose it is. A store may remove a file of its own meanwhile."""
    found = set()
    for each in (directory, *directory.rglob("*")):
        with suppress(FileNotFoundError):
            found.add(each.lstat().st_mode & 0o077)
    return found


def test_nobody_else_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    program = (
        "import os, sys, pathlib; from fairlane.cli.embedded_store import EmbeddedStore; os.umask(0);"
        "s = EmbeddedStore(pathlib.Path(sys.argv[1])); s.start(); print(s.url, flush=True); sys.stdin.read(); s.stop()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        with redis.from_url(parent.stdout.readline().strip()) as client:
            client.set("answer", 42)
            client.bgrewriteaof()
        assert modes(tmp_path / "store") == {0}
        assert [*(tmp_path / "store").rglob("*.aof")]
        parent.communicate("")
    assert modes(tmp_path / "store") == {0}


def test_one_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch(0o644)
    inner = tmp_path / "store" / "appendonlydir"
    inner.mkdir(0o755, parents=True)
    (inner / "appendonly.aof.manifest.old").touch(0o644)
    (inner / "link").symlink_to(tmp_path / "elsewhere")
    store = EmbeddedStore(tmp_path / "store")

    store.start()
    store.stop()

    assert {found.lstat().st_mode & 0o077 for found in (inner.parent, inner, *inner.glob("app*"))} == {0}
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o644


def test_a_path_too_long_for_a_socket_still_works(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / ("long" * 30))
    store.start()

    with redis.from_url(store.url) as client:
        assert client.ping()
    store.stop()


def test_the_server_dies_with_a_killed_parent(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from fairlane.cli.embedded_store import EmbeddedStore;"
        "s = EmbeddedStore(pathlib.Path(sys.argv[1])); s.start(); print(s.process.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    with parent:
        assert parent.stdout is not None
        server = int(parent.stdout.readline())
        watch = os.pidfd_open(server)
        os.kill(parent.pid, signal.SIGKILL)

    ready, _, _ = select.select([watch], [], [], 10)
    os.close(watch)
    assert ready, "the server outlived its parent by 10 s"


def test_a_binary_that_does_not_serve_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"did not start; see .*store\.log"):
        EmbeddedStore(tmp_path, binary="/bin/false").start()
