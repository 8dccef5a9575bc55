"""`fairlane backup` and `fairlane restore`."""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from typing import Annotated, Any

import redis
import typer

from fairlane.cli.client import CommandError, report_errors
from fairlane.cli.embedded_store import UMASK, StoreError
from fairlane.cli.main import NAME, ConfigFile
from fairlane.cli.printer import Document, Output, OutputCommand, OutputForm, show_document
from fairlane.cli.recovery import contents, families, place, snapshot
from fairlane.cli.recovery.archive import Archive, Manifest, latest
from fairlane.cli.recovery.archive import place as place_of_backups
from fairlane.cli.recovery.place import Place
from fairlane.cli.recovery.snapshot import Record
from fairlane.common.settings_error import SettingsError
from fairlane.store import schema
from fairlane.store.errors import STORE_ERRORS

backup_app = typer.Typer(add_completion=False)
restore_app = typer.Typer(add_completion=False)

Where = Annotated[str, typer.Argument(metavar="PLACE", help="Folder, or URL of a bucket: s3://…, gs://…, az://….")]


@backup_app.command(cls=OutputCommand)
def backup(
    where: Where,
    config: ConfigFile = None,
    without_files: Annotated[
        bool, typer.Option("--without-files", help="Save the records of files and batches, not their contents.")
    ] = False,
    output: Output = OutputForm.TABLE,
) -> None:
    """Save the store's tenants, keys, prices, budgets, ledgers, audit log, files and batches, while gateways serve."""
    with errors(), place.opened(config) as here:
        show_document(asyncio.run(save(here, where, with_files=not without_files)), output)


@restore_app.command(cls=OutputCommand)
def restore(
    where: Where,
    name: Annotated[str | None, typer.Option(help="Which backup of the place; defaults to its latest.")] = None,
    config: ConfigFile = None,
    output: Output = OutputForm.TABLE,
) -> None:
    """Write a backup into the settings' store, which must hold none of the keys that a backup has."""
    with errors(), place.opened(config, create=True) as here:
        show_document(asyncio.run(load(here, where, name)), output)


async def save(here: Place, where: str, *, with_files: bool = True) -> Document:
    """Make a backup and describe it. Raises CommandError, STORE_ERRORS."""
    began_s, kept = time.time(), place_of_backups(where)
    archive = Archive(kept, f"{datetime.fromtimestamp(began_s, UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}")
    async with place.client(here.budgets_url) as client:
        stored = await _schema(client)
        if refusal := schema.refusal(stored):
            raise CommandError(f"the store cannot be backed up: {refusal}")
    known = (stored or f"{schema.SCHEMA} {schema.OLDEST_SCHEMA}".encode()).decode()
    manifest = Manifest(release=metadata.version(NAME), schema=known, began_at=began_s)
    ids, folder = set[str](), here.files_folder if with_files else None
    running = [] if folder is None else await contents.save_running(archive, folder)
    for url in here.urls:
        async with place.client(url) as client:
            found = snapshot.read(client, url, lambda key, url=url: here.holds(url, key))  # type: ignore[misc]
            await archive.write(manifest, _noting(found, ids))
    if folder is not None:
        manifest.contents = await contents.save(archive, folder, ids, running)
    manifest.ended_at = time.time()
    await archive.finish(manifest)
    return _description(archive, manifest, began_s)


async def load(here: Place, where: str, name: str | None) -> Document:
    """Restore a backup and describe it. Raises CommandError, STORE_ERRORS."""
    began_s, kept = time.time(), place_of_backups(where)
    archive = Archive(kept, name or await latest(kept))
    manifest = await archive.manifest()
    _check_schema(manifest, archive.name)
    for part in [*manifest.parts, *(manifest.contents or ())]:
        async for _ in archive.content(part):
            pass
    for url in here.urls:
        await _lock(here, url, archive.name)
    turns: list[dict[bytes, Record]] = [{} for _ in range(families.TURNS)]
    for part in manifest.parts:
        for record in await archive.records(part):
            turns[families.turn_of(record.key)][record.key] = record
        await _write(here, turns[0])
        turns[0] = {}
    for records in turns:
        await _write(here, records)
    await contents.restore(archive, manifest.contents or (), here.files_url, here.drafts)
    for url in here.urls:
        async with place.client(url) as client:
            await client.set(schema.KEY, manifest.schema)
    return _description(archive, manifest, began_s)


async def _write(here: Place, records: Mapping[bytes, Record]) -> None:
    for url in here.urls:
        async with place.client(url) as client:
            await snapshot.write(client, [each for key, each in records.items() if here.holds(url, key)])


async def _lock(here: Place, url: str, name: str) -> None:
    """Let no process work on the store until the restore is whole. Raises CommandError if it has keys of its own."""
    mark = f"{schema.RESTORING} {name}".encode()
    async with place.client(url) as client:
        stored = await _schema(client)
        if stored == mark:  # an interrupted restore of this backup goes on
            return
        if stored is not None and stored.startswith(schema.RESTORING.encode()):
            raise CommandError(
                f"a restore of another backup was interrupted: empty the store, or repeat it ({stored!r})"
            )
        async for key in snapshot.keys_of(url, lambda key: families.IN_USE.match(key) is not None):
            rule = "restore into an empty store, before `fairlane serve` starts on it"
            raise CommandError(f"the store is not empty: it has {key.decode(errors='replace')!r}; {rule}")
        await client.set(schema.KEY, mark)


def _check_schema(manifest: Manifest, name: str) -> None:
    if refusal := schema.refusal(manifest.schema.encode()):
        release = f"use Fairlane {manifest.release}, which made it"
        raise CommandError(f"the backup {name} cannot be restored by this release: {refusal} ({release})")


async def _schema(client: Any) -> bytes | None:  # noqa: ANN401 - redis-py's types
    stored: bytes | None = await client.execute_command("GET", schema.KEY)
    return stored


async def _noting(batches: AsyncIterator[list[Record]], ids: set[str]) -> AsyncIterator[list[Record]]:
    """Pass records on; note the ids of files and batches."""
    async for records in batches:
        named = (record.key for record in records if families.kind_of(record.key) in (b"file", b"batch"))
        ids |= {key.rpartition(b":")[2].decode() for key in named}
        yield records


def _description(archive: Archive, manifest: Manifest, began_s: float) -> Document:
    parts = [*manifest.parts, *(manifest.contents or ())]
    return {
        "backup": archive.name,
        "keys": sum(manifest.keys.values()),
        "files": "left in place" if manifest.contents is None else len(manifest.contents),
        "bytes": sum(part.bytes for part in parts),
        "seconds": round(time.time() - began_s, 2),
        "taken_at": datetime.fromtimestamp(manifest.began_at, UTC).isoformat(timespec="seconds"),
    }


@contextmanager
def errors() -> Iterator[None]:
    """Report errors of stores and of places of backups in one sentence; keep what is written private."""
    os.umask(UMASK)
    with report_errors((CommandError, SettingsError, StoreError)):
        try:
            yield
        except redis.ResponseError as error:
            raise CommandError(f"the store refused a command: {error}") from None
        except STORE_ERRORS as error:
            raise CommandError(
                f"the store or the place of the backup failed ({type(error).__name__}: {error})"
            ) from None
