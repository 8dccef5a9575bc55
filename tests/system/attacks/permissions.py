"""What somebody finds who has the files: their permissions, whatever the umask, and what they hold in the clear.

The server is to be started under a umask of 0: `umask_of_nobody`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.system.harness import ADMIN_KEY, MODEL, Server
from tests.system.attacks.rows import Row, compared
from tests.system.attacks.target import bearer

KIND = "permissions"
_OTHERS = 0o077


@contextmanager
def umask_of_nobody() -> Iterator[None]:
    """A block in which files are made as open as programs make them."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def rows(server: Server) -> Iterator[Row]:
    """The data directory, after requests of all kinds."""
    key = server.tenant("files")
    session = _signed_in(server)
    _answered(server, key)
    data = [server.directory / name for name in ("store", "lock")]
    found = [path for each in data for path in (each, *each.rglob("*"))]
    yield compared(
        KIND, "the data directory, under a umask of 0", "0700", f"{server.directory.stat().st_mode & 0o777:04o}"
    )
    for name, directories in (("directories in it", True), ("files in it", False)):
        modes = sorted({path.lstat().st_mode & 0o777 for path in found if path.is_dir() == directories})
        seen = ", ".join(f"{mode:04o}" for mode in modes)
        is_well = not any(mode & _OTHERS for mode in modes)
        yield Row(KIND, name, "closed to all others", seen, is_well)
    secrets = {"a tenant's key": key, "the admin key": ADMIN_KEY, "a session's id": session}
    for name, secret in secrets.items():
        holding = [path.name for path in found if path.is_file() and _holds(path, secret)]
        yield compared(KIND, f"{name}, in the store's files", "not there", ", ".join(holding) or "not there")


def _signed_in(server: Server) -> str:
    own = {"origin": server.admin_url, "x-fairlane-csrf": "1", **bearer(ADMIN_KEY)}
    with httpx.Client(base_url=server.admin_url, timeout=30.0) as http:
        answer = http.post("/console/session", headers=own).raise_for_status()
    return answer.headers["set-cookie"].partition(";")[0].partition("=")[2]


def _answered(server: Server, key: str) -> None:
    asked = {"model": MODEL, "prompt": "a", "max_tokens": 2}
    headers = {**bearer(key), "idempotency-key": "kept"}
    httpx.post(f"{server.url}/v1/completions", json=asked, headers=headers, timeout=30.0).raise_for_status()


def _holds(path: Path, secret: str) -> bool:
    return secret.encode() in path.read_bytes()
