"""`fairlane serve`: everything on one machine — embedded store, one worker, one gateway — from one process."""

import asyncio
import fcntl
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import redis.asyncio

from gateway.commands.first_start import first_start
from gateway.commands.private import UMASK, NotPrivate, make_private
from gateway.commands.store import EmbeddedStore, StoreError
from gateway.commands.supervisor import Child, ChildRefused, check_config, children_environ, supervise
from gateway.config import read_document
from gateway.port import PortRefused, check_ports
from quotas.store import StoreUnavailable
from scheduler import store_cluster
from scheduler.settings import SettingsError, SharedSettings, load

log = logging.getLogger(__name__)

GRACE_S = 30.0
"""What gateway and worker give their work after SIGTERM, where their own settings do not say."""
STOP_MARGIN_S = 15.0
"""What a child may take beyond that before it is killed."""
READY_POLL_S = 0.1
FIRST_PATIENCE_S = 20.0


class ServeError(RuntimeError):
    """Why `serve` could not start, in one line."""


async def serve(settings: SharedSettings, *, config: str | None, flags: Mapping[str, str]) -> None:
    """Run until SIGINT or SIGTERM. `flags` are settings by variable name. Raises ServeError, StoreError."""
    arguments = ["--config", config] if config else []
    directory = Path(settings.data_dir)
    with _only_one(directory):
        await _check_ports(settings)
        await _check(arguments, {**flags, "FAIRLANE_REDIS_URL": settings.redis_url or "unix:///unused"})
        store = None if settings.redis_url else EmbeddedStore(directory / "store")
        if store is not None:
            store.start()
        try:
            url = store.url if store is not None else str(settings.redis_url)
            greeting = await _first_start(url, settings)
            environ = children_environ({**flags, "FAIRLANE_REDIS_URL": url})
            children = [  # the gateway stops first: its streams end while the worker still answers
                Child("gateway", arguments, environ, _patience_s(settings.gateway, "grace_s")),
                Child("worker", arguments, environ, _patience_s(settings.worker, "drain_s")),
            ]
            await _run(children, store, settings, greeting)
        finally:
            if store is not None:
                store.stop()


@contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    """Hold the data directory; the lock goes with the process, however that ends.

    Neither this process nor those that it starts write anything from here on that others could read.
    """
    os.umask(UMASK)
    try:
        make_private(directory)
    except NotPrivate as error:
        raise ServeError(f"setting data_dir: {error}") from None
    with (directory / "lock").open("w") as lock:
        os.fchmod(lock.fileno(), 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServeError(f"another `fairlane serve` uses {directory}") from None
        yield


async def _check(arguments: list[str], overrides: Mapping[str, str]) -> None:
    environ = children_environ(overrides)
    complaints = await asyncio.gather(*(check_config(module, arguments, environ) for module in ("gateway", "worker")))
    for complaint in filter(None, complaints):
        raise ServeError(complaint.splitlines()[-1])


async def _check_ports(settings: SharedSettings) -> None:
    try:
        await check_ports(settings)
    except PortRefused as error:  # whoever has it would pass for our own gateway
        raise ServeError(str(error)) from None


def _patience_s(section: object, setting: str) -> float:
    """How long a child may take to stop. Its section was checked by the child itself."""
    stated = section.get(setting) if isinstance(section, Mapping) else None
    return (GRACE_S if stated is None else float(stated)) + STOP_MARGIN_S


async def _first_start(url: str, settings: SharedSettings) -> str:
    async with _client(url) as client, _client(settings.quota_redis_url or url) as budgets:
        try:
            return await first_start(client, budgets, settings)
        except (redis.RedisError, StoreUnavailable) as error:
            raise ServeError(f"the store at FAIRLANE_REDIS_URL does not answer ({type(error).__name__})") from None


def _client(url: str) -> redis.asyncio.Redis:
    return store_cluster.client(url, limit=1, timeout_s=FIRST_PATIENCE_S)


async def _run(children: list[Child], store: EmbeddedStore | None, settings: SharedSettings, greeting: str) -> None:
    stop = asyncio.Event()
    tasks = [asyncio.create_task(_greet_when_ready(settings, greeting))]
    if store is not None:
        tasks.append(asyncio.create_task(_keep_store_alive(store, stop)))
    try:
        await supervise([[child] for child in children], stop)
    except ChildRefused as error:
        raise ServeError(str(error)) from None
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for ended in ends:
        if isinstance(ended, Exception):
            raise ended


async def _keep_store_alive(store: EmbeddedStore, stop: asyncio.Event) -> None:
    """Start the store again whenever it dies. It is spawned from this thread, which lives as long as it should."""
    while not stop.is_set():
        status = await asyncio.to_thread(store.process.wait)
        if not stop.is_set():
            log.warning("the store ended with status %d; starting it again", status)
            try:
                store.start()
            except StoreError as error:
                log.error("%s", error)
                stop.set()


async def _greet_when_ready(settings: SharedSettings, greeting: str) -> None:
    """Print what is shown this once; also where the start ends before anything is served."""
    try:  # itself, whatever proxy the environment names for others
        async with httpx.AsyncClient(base_url=settings.url, timeout=5.0, trust_env=False) as client:
            while True:
                with suppress(httpx.HTTPError):
                    if (await client.get("/readyz")).status_code == httpx.codes.OK:
                        break
                await asyncio.sleep(READY_POLL_S)
        greeting = f"Fairlane serves {settings.model} on {settings.url}\n{greeting}"
    finally:
        sys.stdout.write(greeting)
        sys.stdout.flush()


def read_settings(config: str | None, flags: Mapping[str, object]) -> SharedSettings:
    """The shared settings. Raises ServeError."""
    try:
        return load(SharedSettings, document=read_document(config, os.environ), environ=os.environ, flags=flags)
    except SettingsError as error:
        raise ServeError(str(error)) from None
