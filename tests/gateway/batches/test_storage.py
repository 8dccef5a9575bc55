"""Objects in a folder and in a bucket: whole or not at all."""

import stat
from pathlib import Path

import pytest
from obstore.store import LocalStore, MemoryStore

from fairlane.gateway.batches.storage import (
    READ_BYTES,
    BucketStorage,
    Drafts,
    FolderStorage,
    NotStored,
    Storage,
    read_all,
    storage,
)

pytestmark = pytest.mark.anyio

CONTENT = b"0123456789" * (READ_BYTES // 4)


@pytest.fixture(params=["folder", "bucket", "local bucket"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "folder":
        return FolderStorage(tmp_path / "kept")
    return BucketStorage(MemoryStore() if request.param == "bucket" else LocalStore(tmp_path / "local", mkdir=True))


def draft(folder: Path, content: bytes = CONTENT) -> Path:
    path = Drafts(folder / "drafts").new()
    path.write_bytes(content)
    return path


async def test_what_was_put_can_be_read_whole_and_in_part(kept: Storage, tmp_path: Path) -> None:
    given = draft(tmp_path)
    await kept.put("files/a", given)

    assert not given.exists()
    assert await read_all(kept, "files/a") == CONTENT
    assert await read_all(kept, "files/a", 5, 17) == CONTENT[5:17]


async def test_the_later_one_stands_in_the_place_of_the_earlier(kept: Storage, tmp_path: Path) -> None:
    for content in (b"one", b"two"):
        await kept.put("files/a", draft(tmp_path, content))
    assert await read_all(kept, "files/a") == b"two"


async def test_what_was_deleted_is_not_stored(kept: Storage, tmp_path: Path) -> None:
    for name in ("batches/a/1", "batches/a/2", "batches/ab/1", "files/a"):
        await kept.put(name, draft(tmp_path, b"x"))

    await kept.delete_folder("batches/a")
    await kept.delete("files/a")
    await kept.delete("files/a")
    await kept.delete_folder("batches/none")

    for name in ("batches/a/1", "batches/a/2", "files/a"):
        with pytest.raises(NotStored):
            await read_all(kept, name)
        with pytest.raises(NotStored):
            await read_all(kept, name, 0, 1)
    assert await read_all(kept, "batches/ab/1") == b"x"


async def test_folders_are_nobody_elses_to_look_into(tmp_path: Path) -> None:
    await FolderStorage(tmp_path / "data" / "files").put("files/a", draft(tmp_path))
    made = [tmp_path / "data", tmp_path / "data" / "files", tmp_path / "data" / "files" / "files", tmp_path / "drafts"]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in made] == [0o700] * 4


async def test_an_object_of_another_file_system_is_copied_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = draft(Path("/dev/shm") / tmp_path.name)  # noqa: S108 - memory that is a file system of its own
    try:
        await FolderStorage(tmp_path / "kept").put("files/a", given)
    finally:
        given.unlink(missing_ok=True)
        given.parent.rmdir()
        given.parent.parent.rmdir()
    assert [path.name for path in (tmp_path / "kept" / "files").iterdir()] == ["a"]


@pytest.mark.parametrize("url", ["", "files", "file://host/x", "file:relative", "ftp://x/y", "s3://"])
def test_a_url_that_names_no_place_is_an_error(url: str) -> None:
    with pytest.raises(ValueError, match=r"must be|names no"):
        storage(url)
