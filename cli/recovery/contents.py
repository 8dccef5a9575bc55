"""The contents of tenants' files: saved where they are in a folder, left where they are in a bucket."""

from collections.abc import Collection, Iterator
from pathlib import Path

from fairlane.cli.recovery.archive import Archive, Part
from fairlane.gateway.batches.storage import PARTIAL, READ_BYTES, Drafts, storage

SAVED_AS = "contents/"
# Folders of the storage; the names in them begin with the id of a file or batch.
FOLDERS = ("files", "batches")


async def save(archive: Archive, folder: Path, ids: Collection[str]) -> list[Part]:
    """Copy what the storage's folder has of these files and batches. Raises OSError."""
    saved = []
    for name in _names(folder, ids):
        try:
            saved.append(await archive.put(f"{SAVED_AS}{name}", _read(folder / name)))
        except FileNotFoundError:  # it expired or was deleted meanwhile
            continue
    return saved


async def restore(archive: Archive, contents: Collection[Part], files_url: str, drafts: Path) -> None:
    """Copy contents back into the storage, replacing any of the same name. Raises CommandError, OSError."""
    kept, unfinished = storage(files_url), Drafts(drafts / PARTIAL)
    for part in contents:
        draft = unfinished.new()
        with draft.open("wb") as file:
            async for each in archive.content(part):
                file.write(each)
        await kept.put(part.name.removeprefix(SAVED_AS), draft)


def _names(folder: Path, ids: Collection[str]) -> Iterator[str]:
    for below in FOLDERS:
        for path in sorted((folder / below).rglob("*")):
            name = path.relative_to(folder)
            if name.parts[1].partition(".")[0] in ids and path.is_file():
                yield name.as_posix()


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(READ_BYTES):
            yield part
