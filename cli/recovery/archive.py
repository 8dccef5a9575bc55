"""A backup in a folder or bucket: `<name>/manifest.json`, written last, and the parts that it lists with checksums."""

import asyncio
import gzip
import hashlib
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import msgspec

from fairlane.cli.client import CommandError
from fairlane.cli.recovery import families
from fairlane.cli.recovery.snapshot import Record
from fairlane.gateway.batches.storage import NotStored, Storage, read_all, storage

FORMAT = 1
MANIFEST = "manifest.json"
LATEST = "latest"
# Bytes of a part before compression; a part holds one key at least.
PART_BYTES = 8 * 2**20
_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.Decoder(list[Record]).decode


class Part(msgspec.Struct, frozen=True):
    """One object of a backup."""

    name: str
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, kw_only=True):
    """A whole backup."""

    format: int = FORMAT
    release: str
    # The store's `fl:schema`.
    schema: str
    # Epoch seconds.
    began_at: float
    ended_at: float = 0.0
    # Number of keys by family.
    keys: dict[str, int] = msgspec.field(default_factory=dict)
    parts: list[Part] = msgspec.field(default_factory=list)
    # Contents of files; None: they stay where the settings have them.
    contents: list[Part] | None = None


def place(destination: str) -> Storage:
    """Return a folder, or the bucket of a URL. Raises CommandError."""
    try:
        return storage(destination if "://" in destination else Path(destination).absolute().as_uri())
    except ValueError as error:
        raise CommandError(f"{destination}: {error}") from None


class Archive:
    """One backup, by its name in a folder or bucket. Every call may raise OSError."""

    def __init__(self, kept: Storage, name: str) -> None:
        self._kept = kept
        self.name = name

    async def write(self, manifest: Manifest, batches: AsyncIterator[list[Record]]) -> None:
        """Write all records as parts, and list them in the manifest."""
        waiting, size, counts = list[Record](), 0, Counter(manifest.keys)
        async for batch in batches:
            for record in batch:
                waiting.append(record)
                size += len(record.dump)
                counts[_family(record.key)] += bool(record.dump)
                if size >= PART_BYTES:
                    manifest.parts.append(await self._write(waiting, len(manifest.parts)))
                    waiting, size = [], 0
        if waiting:
            manifest.parts.append(await self._write(waiting, len(manifest.parts)))
        manifest.keys = dict(counts)

    async def finish(self, manifest: Manifest) -> None:
        """Write the manifest, without which the backup is not whole, and make it the latest one."""
        await self.put(MANIFEST, [msgspec.json.format(msgspec.json.encode(manifest))])
        await _put(self._kept, LATEST, [self.name.encode()])

    async def manifest(self) -> Manifest:
        """Raises CommandError if there is none, or this release cannot read it."""
        try:
            found = await read_all(self._kept, f"{self.name}/{MANIFEST}")
        except NotStored:
            raise CommandError(f"{self.name} has no {MANIFEST}: it is no backup, or was interrupted") from None
        try:
            if (version := msgspec.json.decode(found)["format"]) != FORMAT:
                raise CommandError(f"{self.name} has format {version}: restore it with the release that made it")
            return msgspec.json.decode(found, type=Manifest)
        except (msgspec.MsgspecError, LookupError, TypeError):
            raise CommandError(f"{self.name} is damaged: its {MANIFEST} cannot be read; use another backup") from None

    async def records(self, part: Part) -> list[Record]:
        """Return a part's records. Raises CommandError if it is missing or damaged."""
        stored = b"".join([each async for each in self.content(part)])
        return _decode(gzip.decompress(stored))

    async def content(self, part: Part) -> AsyncIterator[bytes]:
        """Yield a part's bytes. Raises CommandError, possibly after the last ones, if it is missing or damaged."""
        digest = hashlib.sha256()
        try:
            async for each in self._kept.read(f"{self.name}/{part.name}"):
                digest.update(each)
                yield each
        except NotStored:
            raise CommandError(f"{self.name} is damaged: {part.name} is missing; use another backup") from None
        if digest.hexdigest() != part.sha256:
            raise CommandError(f"{self.name} is damaged: {part.name} was changed; use another backup")

    async def put(self, name: str, content: Iterable[bytes]) -> Part:
        return await _put(self._kept, f"{self.name}/{name}", content, name)

    async def _write(self, records: list[Record], number: int) -> Part:
        return await self.put(f"keys-{number:05}.gz", [gzip.compress(_encode(records), 1)])


async def latest(kept: Storage) -> str:
    """Return the name of a place's latest whole backup. Raises CommandError."""
    try:
        return (await read_all(kept, LATEST)).decode()
    except NotStored:
        raise CommandError(
            "there is no backup in this place: name the folder or URL that `fairlane backup` got"
        ) from None


async def _put(kept: Storage, name: str, content: Iterable[bytes], shown: str = "") -> Part:
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder, "part")
        part = await asyncio.to_thread(_drafted, draft, content, shown or name)
        await kept.put(name, draft)
    return part


def _drafted(draft: Path, content: Iterable[bytes], name: str) -> Part:
    digest, size = hashlib.sha256(), 0
    with draft.open("wb") as file:
        for each in content:
            digest.update(each)
            size += file.write(each)
    return Part(name, size, digest.hexdigest())


def _family(key: bytes) -> str:
    kind = families.kind_of(key).decode()
    head = key.split(b":{")[0] if kind else b":".join(key.split(b":")[:2])
    return f"{head.decode()}:{kind}" if kind else head.decode()
