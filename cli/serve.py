"""`fairlane serve`: embedded store, one worker and one gateway, supervised by one process.

In an empty store it creates an admin key and a demo tenant, so that the printed request works as pasted."""

import asyncio
import logging
import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import httpx
import redis.asyncio

from fairlane.cli.client import CommandError
from fairlane.cli.embedded_store import EmbeddedStore, StoreError, only_one, write_private
from fairlane.common.settings_error import SettingsError
from fairlane.gateway.control.operators.admin_key import AdminKeys
from fairlane.gateway.http.ports import PortRefused, check_ports
from fairlane.gateway.processes import Child, ChildRefused, check_config, supervise
from fairlane.quotas.api_keys import KeyStore
from fairlane.quotas.tenants import TenantExists, TenantStore
from fairlane.scheduler.protocol.settings import SharedSettings
from fairlane.store import cluster
from fairlane.store.errors import StoreUnavailable
from fairlane.worker.model.files import is_embedder, served_name

DEMO = "demo"
# Holds the demo tenant's key in the data directory if stdout is not a terminal.
DEMO_KEY_FILE = f"{DEMO}.key"
_CURL = """\
  curl {url}/v1/chat/completions -H {authorization} -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "max_tokens": 64, "temperature": 0,
         "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'
"""
_CURL_OF_AN_EMBEDDER = """\
  curl {url}/v1/embeddings -H {authorization} -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "input": "The capital of France is Paris."}}'
"""
# Replaced once the served model's name is known.
_MODEL = "<model>"
# The default time that gateway and worker take to stop after SIGTERM.
GRACE_S = 30.0
# Extra time before a child is killed.
STOP_MARGIN_S = 15.0
READY_POLL_S = 0.1
FIRST_PATIENCE_S = 20.0
# Errors that end `serve` with one line.
REFUSALS = (CommandError, SettingsError, StoreError, PortRefused, ChildRefused)

log = logging.getLogger(__name__)


async def first_start(
    client: redis.asyncio.Redis, budgets: redis.asyncio.Redis, settings: SharedSettings, *, on_terminal: bool
) -> str:
    """Create the admin key and the `demo` tenant if there are none; return a greeting for the operator.

    The tenant's key is only printed to a terminal: a log may keep it. Otherwise it is written to a file, from which the
    `curl` line reads it. Raises redis.RedisError, StoreUnavailable, OSError."""
    greeting = ""
    admin_key = await AdminKeys(client, settings.admin_key).ensure()
    if admin_key is not None:
        greeting += f"Admin key, shown this once: {admin_key}\n"
    demo_key = await _demo_key(budgets)
    if demo_key is not None:
        if on_terminal:
            where, authorization = "shown this once", f"'Authorization: Bearer {demo_key}'"
        else:
            file = (Path(settings.data_dir) / DEMO_KEY_FILE).absolute()
            write_private(file, demo_key)
            where, authorization = f"in {file}", f'"Authorization: Bearer $(cat {shlex.quote(str(file))})"'
        curl = _curl_of(settings).format(url=settings.url, authorization=authorization, model=_MODEL)
        greeting += f"A tenant `{DEMO}` with one key, {where}. Try:\n{curl}"
    return greeting


def _curl_of(settings: SharedSettings) -> str:
    is_ours = _engine_of(settings) == (None, None)
    return _CURL_OF_AN_EMBEDDER if is_ours and is_embedder(Path(settings.model).expanduser()) else _CURL


async def _demo_key(client: redis.asyncio.Redis) -> str | None:
    tenants = TenantStore(client)
    if await tenants.list(limit=1):
        return None
    try:
        demo = await tenants.create({"id": DEMO, "name": "Demo"})
    except TenantExists:  # another `serve` on the same store created it
        return None
    return (await KeyStore(client).create(demo, {"name": "demo"})).secret


async def serve(settings: SharedSettings, *, config: str | None, flags: Mapping[str, str]) -> None:
    """Run until SIGINT or SIGTERM. `flags` are settings by variable name. Raises one of REFUSALS."""
    arguments = ["--config", config] if config else []
    directory = Path(settings.data_dir)
    with only_one(directory):
        await _check(settings, arguments, {**flags, "FAIRLANE_REDIS_URL": settings.redis_url or "unix:///unused"})
        store = None if settings.redis_url else EmbeddedStore(directory / "store")
        if store is not None:
            store.start()
        try:
            url = store.url if store is not None else str(settings.redis_url)
            greeting = await _first_start(url, settings)
            environ = {**os.environ, **flags, "FAIRLANE_REDIS_URL": url}
            children = [  # the gateway stops first: its streams end while the worker still answers
                Child("fairlane.gateway", arguments, environ, _patience_s(settings.gateway, "grace_s")),
                Child("fairlane.worker", arguments, environ, _patience_s(settings.worker, "drain_s")),
            ]
            await _run(children, store, settings, greeting)
        finally:
            if store is not None:
                store.stop()


async def _check(settings: SharedSettings, arguments: list[str], overrides: Mapping[str, str]) -> None:
    await check_ports(settings)  # another program on the port would pass for our gateway
    environ = {**os.environ, **overrides}
    checks = [check_config(module, arguments, environ) for module in ("fairlane.gateway", "fairlane.worker")]
    for complaint in filter(None, await asyncio.gather(*checks)):
        raise CommandError(complaint.splitlines()[-1])


def _patience_s(section: object, setting: str) -> float:
    """Return how long a child may take to stop. The child has validated its own section."""
    stated = section.get(setting) if isinstance(section, Mapping) else None
    return (GRACE_S if stated is None else float(stated)) + STOP_MARGIN_S


async def _first_start(url: str, settings: SharedSettings) -> str:
    async with _client(url) as client, _client(settings.quota_redis_url or url) as budgets:
        try:
            return await first_start(client, budgets, settings, on_terminal=sys.stdout.isatty())
        except OSError as error:
            raise CommandError(f"{error.filename}: cannot be written ({error.strerror})") from None
        except (redis.RedisError, StoreUnavailable) as error:
            raise CommandError(f"the store at FAIRLANE_REDIS_URL does not answer ({type(error).__name__})") from None


def _client(url: str) -> redis.asyncio.Redis:
    return cluster.client(url, limit=1, timeout_s=FIRST_PATIENCE_S)


async def _run(children: list[Child], store: EmbeddedStore | None, settings: SharedSettings, greeting: str) -> None:
    stop = asyncio.Event()
    tasks = [asyncio.create_task(_greet_when_ready(settings, greeting))]
    if store is not None:
        tasks.append(asyncio.create_task(_keep_store_alive(store, stop)))
    try:
        await supervise([[child] for child in children], stop)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for ended in ends:
        if isinstance(ended, Exception):
            raise ended


async def _keep_store_alive(store: EmbeddedStore, stop: asyncio.Event) -> None:
    """Restart the store whenever it dies, from this thread, which lives as long as the store should."""
    while not stop.is_set():
        status = await asyncio.to_thread(store.process.wait)
        if not stop.is_set():
            log.warning("the store exited with status %d; restarting it", status)
            try:
                store.start()
            except StoreError as error:
                log.error("%s", error)
                stop.set()


async def _greet_when_ready(settings: SharedSettings, greeting: str) -> None:
    try:  # without a proxy from the environment
        async with httpx.AsyncClient(base_url=settings.url, timeout=5.0, trust_env=False) as client:
            while True:
                with suppress(httpx.HTTPError):
                    if (await client.get("/readyz")).status_code == httpx.codes.OK:
                        break
                await asyncio.sleep(READY_POLL_S)
            model = await _served_model(client, settings)
        greeting = f"Fairlane serves {model} on {settings.url}\n{greeting}".replace(_MODEL, model)
    finally:
        sys.stdout.write(greeting.replace(_MODEL, settings.model))
        sys.stdout.flush()


async def _served_model(client: httpx.AsyncClient, settings: SharedSettings) -> str:
    url, named = _engine_of(settings)
    if named is not None:
        return named
    if url is None:
        return served_name(settings.model)
    with suppress(httpx.HTTPError, ValueError, LookupError, TypeError):
        return str((await client.get(f"{url.rstrip('/')}/v1/models")).json()["data"][0]["id"])
    return settings.model


def _engine_of(settings: SharedSettings) -> tuple[str | None, str | None]:
    section = settings.worker if isinstance(settings.worker, Mapping) else {}
    url, named = section.get("engine_url"), section.get("engine_model")
    return url if isinstance(url, str) else None, named if isinstance(named, str) else None
