"""The contents of tenants' files: saved where they are in a folder, left where they are in a bucket."""

from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from fairlane.cli.recovery.archive import Archive, Part
from fairlane.gateway.batches.storage import PARTIAL, READ_BYTES, Drafts, storage

SAVED_AS = "contents/"


async def save_running(archive: Archive, folder: Path) -> list[Part]:
    """Copy the responses of running batches, before their records are read: they are deleted when a batch ends."""
    return [part async for part in _saved(archive, folder, _names(folder, ["batches"]))]


async def save(archive: Archive, folder: Path, ids: Collection[str], saved: Collection[Part]) -> list[Part]:
    """Copy what the storage's folder has of these files and batches. Return it with those of `saved` that are of them.
    Raises OSError."""
    known = {part.name.removeprefix(SAVED_AS): part for part in saved}
    wanted = {name for name in (*_names(folder, ["files", "batches"]), *known) if _id_of(name) in ids}
    copied = [part async for part in _saved(archive, folder, sorted(wanted - known.keys()))]
    return [*(part for name, part in known.items() if name in wanted), *copied]


async def restore(archive: Archive, contents: Collection[Part], files_url: str, drafts: Path) -> None:
    """Copy contents back into the storage, replacing any of the same name. Raises CommandError, OSError."""
    kept, unfinished = storage(files_url), Drafts(drafts / PARTIAL)
    for part in contents:
        draft = unfinished.new()
        with draft.open("wb") as file:
            async for each in archive.content(part):
                file.write(each)
        await kept.put(part.name.removeprefix(SAVED_AS), draft)


async def _saved(archive: Archive, folder: Path, names: Iterable[str]) -> AsyncIterator[Part]:
    for name in names:
        with suppress(FileNotFoundError):  # it expired or was deleted meanwhile
            yield await archive.put(f"{SAVED_AS}{name}", _read(folder / name))


def _names(folder: Path, below: Collection[str]) -> list[str]:
    found = (path for each in below for path in (folder / each).rglob("*") if path.is_file())
    return [path.relative_to(folder).as_posix() for path in found]


def _id_of(name: str) -> str:
    """Return the id of the file or batch whose content has this name."""
    return name.split("/")[1].partition(".")[0]


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(READ_BYTES):
            yield part
