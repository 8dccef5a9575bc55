"""The stores of the settings, for commands that work on them without a gateway."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import redis.asyncio

from fairlane.cli.client import CommandError
from fairlane.cli.embedded_store import DirectoryInUse, EmbeddedStore, only_one
from fairlane.cli.recovery import families
from fairlane.cli.recovery.snapshot import AT_ONCE, TIMEOUT_S
from fairlane.gateway.config import GatewaySettings
from fairlane.scheduler.protocol.settings import load, read_document
from fairlane.store import cluster, urls


@dataclass(frozen=True, slots=True)
class Place:
    """An installation's stores, which may be one, and its storage of files."""

    main_url: str
    budgets_url: str
    files_url: str
    # Unfinished files.
    drafts: Path

    @property
    def urls(self) -> list[str]:
        return list(dict.fromkeys((self.main_url, self.budgets_url)))

    @property
    def files_folder(self) -> Path | None:
        """The folder of files, unless they are in a bucket."""
        parts = urlsplit(self.files_url)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None

    def holds(self, url: str, key: bytes) -> bool:
        """Return whether a key is saved, and is in the store at this URL."""
        if families.OPERATORS.match(key):
            return url == self.main_url
        return url == self.budgets_url and families.is_saved(key)


@contextmanager
def opened(config: str | None, *, create: bool = False) -> Iterator[Place]:
    """Yield the place that the settings name; the embedded store is started unless `fairlane serve` runs it.
    With `create`, its data directory may be missing.

    Raises CommandError, SettingsError, StoreError."""
    settings = load(GatewaySettings, document=read_document(config, os.environ), environ=os.environ)
    directory = Path(settings.data_dir)
    with _main(settings.redis_url, directory, create) as url:
        yield Place(url, settings.quota_redis_url or url, settings.files_url, settings.files_folder)


@contextmanager
def _main(url: str | None, directory: Path, create: bool) -> Iterator[str]:
    if url is not None:
        yield url
        return
    if not (create or directory.is_dir()):
        raise CommandError(f"setting data_dir: {directory} does not exist, and FAIRLANE_REDIS_URL names no store")
    store = EmbeddedStore(directory / "store")
    try:
        with only_one(directory):
            store.start()
            try:
                yield store.url
            finally:
                store.stop()
    except DirectoryInUse:
        yield urls.embedded_url(str(directory))


def client(url: str) -> redis.asyncio.Redis:
    """Return a client for long calls."""
    return cluster.client(url, limit=AT_ONCE, timeout_s=TIMEOUT_S)
