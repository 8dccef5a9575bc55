"""The storage of file contents: a folder on disk, or a bucket of an object store, by the URL in `files.url`.

An object appears whole or not at all. Unfinished files are drafts in a folder of this machine, which is swept."""

import asyncio
import os
import secrets
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Bucket

READ_BYTES = 256 * 1024
PARTIAL = ".partial"
# Age of a dead process's draft. Well below an hour, within which a deleted tenant's uploads must be erased.
FORGOTTEN_S = 1_800.0


class NotStored(Exception):
    """The object does not exist."""


class Storage(Protocol):
    """Objects by name: path segments of ASCII letters, digits, `-`, `_` and `.`, which never come from a caller."""

    async def put(self, name: str, source: Path) -> None: ...

    def read(self, name: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Yield all bytes, or those from `start` to before `end`, in parts of about READ_BYTES. Raise NotStored."""

    async def delete(self, name: str) -> None: ...

    async def delete_folder(self, name: str) -> None: ...


class Drafts:
    """Unfinished files on this machine. Its calls block: use a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def new(self) -> Path:
        _make(self._folder)
        return self._folder / secrets.token_hex(16)

    def sweep(self) -> None:
        with suppress(FileNotFoundError):
            for entry in os.scandir(self._folder):
                with suppress(FileNotFoundError):
                    if entry.stat().st_mtime < time.time() - FORGOTTEN_S:
                        Path(entry.path).unlink()


class FolderStorage:
    """A folder on disk, which all gateways must share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def put(self, name: str, source: Path) -> None:
        await asyncio.to_thread(self._put, self._folder / name, source)

    async def read(self, name: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        with await asyncio.to_thread(_opened, self._folder / name, start) as file:
            left = sys.maxsize if end is None else end - start
            while part := await asyncio.to_thread(file.read, min(left, READ_BYTES)):
                left -= len(part)
                yield part

    async def delete(self, name: str) -> None:
        await asyncio.to_thread((self._folder / name).unlink, missing_ok=True)

    async def delete_folder(self, name: str) -> None:
        await asyncio.to_thread(shutil.rmtree, self._folder / name, ignore_errors=True)

    @staticmethod
    def _put(target: Path, source: Path) -> None:
        _make(target.parent)
        try:
            os.replace(source, target)
        except OSError:  # the drafts are on another file system
            beside = target.with_name(f"{target.name}.{secrets.token_hex(4)}")
            shutil.copyfile(source, beside)
            os.replace(beside, target)
            source.unlink()


class BucketStorage:
    """A bucket of an object store, accessed with obstore's blocking API, because its async API may invoke callbacks
    during shutdown."""

    def __init__(self, bucket: "Bucket") -> None:
        self._bucket = bucket

    async def put(self, name: str, source: Path) -> None:
        with _translated(name):
            await asyncio.to_thread(self._bucket.put, name, source)
        await asyncio.to_thread(source.unlink)

    async def read(self, name: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        with _translated(name):
            if end is not None:
                yield bytes(await asyncio.to_thread(self._bucket.get_range, name, start=start, end=end))
                return
            found = await asyncio.to_thread(self._bucket.get, name)
            parts = iter(found.stream(min_chunk_size=READ_BYTES))
            while (part := await asyncio.to_thread(next, parts, None)) is not None:
                yield bytes(part)

    async def delete(self, name: str) -> None:
        with suppress(NotStored), _translated(name):
            await asyncio.to_thread(self._bucket.delete, name)

    async def delete_folder(self, name: str) -> None:
        with suppress(NotStored), _translated(name):
            await asyncio.to_thread(self._delete_below, f"{name}/")

    def _delete_below(self, prefix: str) -> None:
        for entries in self._bucket.list(prefix):
            self._bucket.delete([entry["path"] for entry in entries])


def storage(url: str) -> Storage:
    """Return a folder for `file:///…`, else a bucket (`s3://…`, `gs://…`, `az://…`). Raise ValueError."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise ValueError("must be file:///<absolute folder>")
        return FolderStorage(Path(unquote(parts.path)))
    if not parts.scheme:
        raise ValueError("must be a URL: file:///…, s3://…")
    try:
        from obstore.store import from_url  # optional: only buckets need it
    except ImportError:
        raise ValueError("needs obstore: install fairlane[objects]") from None
    try:
        return BucketStorage(from_url(url))
    except Exception as error:  # noqa: BLE001 - obstore's exceptions have no other common base
        raise ValueError(f"names no object store ({type(error).__name__})") from None


async def read_all(kept: Storage, name: str, start: int = 0, end: int | None = None) -> bytes:
    """Return a small object in one piece. Raise NotStored."""
    return b"".join([part async for part in kept.read(name, start, end)])


@contextmanager
def _translated(name: str) -> Iterator[None]:
    from obstore.exceptions import BaseError  # as in `storage`

    try:
        yield
    except FileNotFoundError:
        raise NotStored(name) from None
    except BaseError as error:
        raise OSError(f"the object store failed ({type(error).__name__})") from error


def _make(folder: Path) -> None:
    for each in reversed((folder, *folder.parents)):
        with suppress(FileExistsError):
            each.mkdir(mode=0o700)


def _opened(path: Path, start: int) -> IO[bytes]:
    try:
        file = path.open("rb")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise NotStored(path.name) from None
    file.seek(start)
    return file
