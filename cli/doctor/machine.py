"""Checks of memory, disk, open files, ports, and a running gateway."""

import os
import resource
import shutil
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx

from fairlane.cli.config import masked
from fairlane.cli.doctor.findings import Finding, fail, ok, warn
from fairlane.cli.main import version
from fairlane.gateway.__main__ import OTHER_FILES
from fairlane.gateway.config import GatewaySettings
from fairlane.gateway.http.ports import PortRefused, check_ports
from fairlane.worker.config import WorkerSettings

MIB = 2**20
LITTLE_MEMORY, LITTLE_DISK = 1024 * MIB, 1024 * MIB
ASK_S = 3.0


def check_machine(gateway: GatewaySettings, worker: WorkerSettings) -> Iterator[Finding]:
    """Check memory, disk and open files."""
    yield _memory(worker)
    yield _disk(Path(gateway.data_dir))
    yield _open_files(gateway.gateway.max_connections)


async def check_network(gateway: GatewaySettings, worker: WorkerSettings, url: str | None) -> AsyncIterator[Finding]:
    """Check that ports are free or a gateway's and that an external engine answers; with `url`, also that gateway."""
    yield await _ports(gateway)
    if worker.worker.engine_url is not None:
        yield await _engine(worker.worker.engine, worker.worker.engine_url, worker.worker.engine_key)
    if url is not None:
        yield await _gateway(url)


def _memory(settings: WorkerSettings) -> Finding:
    free = _free_bytes()
    asked = (settings.worker.kv_memory or 0) + (settings.worker.host_kv_memory or 0)
    found = f"{free / MIB:,.0f} MiB free"
    if settings.worker.engine != "own":
        return ok("memory", found)
    if asked > free:
        advice = "lower FAIRLANE_WORKER__KV_MEMORY or FAIRLANE_WORKER__HOST_KV_MEMORY, or unset them"
        return fail("memory", f"{found}, but the KV pools are set to {asked / MIB:,.0f} MiB", advice)
    if free - asked < LITTLE_MEMORY:
        return warn("memory", found, "weights and KV pools must fit: stop other programs, or use a smaller model")
    return ok("memory", found)


def _free_bytes() -> int:
    machine = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        import psutil

        machine = int(psutil.virtual_memory().available)  # counts reclaimable caches as free
    except ImportError:
        pass
    try:
        group = Path("/sys/fs/cgroup")
        limit, used = int((group / "memory.max").read_text()), int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no container, or one without a limit
        return machine
    return min(machine, max(0, limit - used))


def _disk(directory: Path) -> Finding:
    nearest = next(place for place in (directory.absolute(), *directory.absolute().parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return fail("data directory", f"{directory} cannot be written", "set FAIRLANE_DATA_DIR to a writable directory")
    free = shutil.disk_usage(nearest).free
    found = f"{directory}, {free / MIB:,.0f} MiB free"
    if free < LITTLE_DISK:
        return warn("data directory", found, "the store's file and converted models need space: free some")
    if directory.exists() and stat.S_IMODE(directory.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        return warn("data directory", f"{directory} is open to others", "chmod 700 it; `fairlane serve` does so")
    return ok("data directory", found)


def _open_files(connections: int) -> Finding:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = "unlimited" if most == resource.RLIM_INFINITY else f"{most:,} open files at most"
    if most != resource.RLIM_INFINITY and most < connections + OTHER_FILES:
        room = max(most - OTHER_FILES, 1)
        return warn("ulimit", found, f"a gateway takes {room:,} connections, not {connections:,}: raise ulimit -Hn")
    return ok("ulimit", found)


async def _ports(settings: GatewaySettings) -> Finding:
    try:
        await check_ports(settings)
    except PortRefused as error:
        running = await _version_at(settings.url)
        if running is not None:
            return ok("ports", f"a gateway ({running}) listens at {settings.url}")
        return fail("ports", str(error), "set FAIRLANE_PORT to a free port, or stop the program that uses it")
    return ok("ports", f"{settings.host}:{settings.port} is free")


async def _gateway(url: str) -> Finding:
    running, ours = await _version_at(url), version("fairlane")
    if running is None:
        return fail("gateway", f"no gateway answers at {url}", "set FAIRLANE_URL to a gateway's address, or start one")
    if running != ours:
        return warn("gateway", f"{url} runs {running}", f"this command is {ours}: use the same version")
    return ok("gateway", f"{url} runs {running}")


async def _engine(kind: str, url: str, key: str | None) -> Finding:
    place = masked("engine_url", url)
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        async with httpx.AsyncClient(timeout=ASK_S, headers=headers) as http:
            answer = await http.get(f"{url.rstrip('/')}/v1/models")
            models = [str(each["id"]) for each in answer.raise_for_status().json()["data"]]
    except httpx.HTTPStatusError as error:
        advice = "set FAIRLANE_WORKER__ENGINE_KEY" if error.response.status_code in (401, 403) else "check its log"
        return fail("engine", f"{place} answers {error.response.status_code}", advice)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
        advice = "start it, or correct FAIRLANE_WORKER__ENGINE_URL"
        return fail("engine", f"no {kind} answers at {place} ({type(error).__name__})", advice)
    return ok("engine", f"{kind} at {place} serves {', '.join(models[:3]) or 'nothing yet'}")


async def _version_at(url: str) -> str | None:
    try:
        async with httpx.AsyncClient(timeout=ASK_S, trust_env=False) as http:
            return str((await http.get(f"{url.rstrip('/')}/version")).json()["version"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError):
        return None
