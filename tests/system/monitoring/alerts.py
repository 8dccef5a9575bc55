"""Every alert made to fire by its fault, before real processes and a running Prometheus: prints a table.

python -m tests.system.monitoring.alerts [--only ALERT …]

One world: two stores, a gateway of two processes, a scripted worker and a real one with a tiny model. Windows and `for`
of the rules are shortened to seconds, and lanes have small targets: else each row would take a quarter of an hour.
"""

import argparse
import asyncio
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.gateway.config import MEMBER_FLAG
from fairlane.store.connections import connections
from tests.support.gateway.hand_worker import HandWorker
from tests.support.gateway.served import OPERATOR
from tests.support.gateway.spawned import process
from tests.support.ports import free_port
from tests.support.prometheus import ALERTS, RECORDING, Prometheus, prometheus, rules
from tests.support.tasks import end
from tests.support.worker.fleet import Fleet, Process
from tests.support.worker.tiny_model import write_tiny_model

LIMIT_S = 45.0
HAND, REAL = "tiny", "real"
"""Names of the models."""
SETTINGS = {
    "FAIRLANE_GATEWAY__PROCESSES": "2",
    "FAIRLANE_GATEWAY__QUOTA_FALLBACK": "fail_open",
    "FAIRLANE_LANES__LATENCY__MAX_WAIT_S": "8",
    "FAIRLANE_LANES__LATENCY__TTFT_S": "0.2",
    "FAIRLANE_LANES__LATENCY__TPOT_MS": "10",
    "FAIRLANE_LANES__LATENCY__MAX_QUEUED": "4",
    "FAIRLANE_LEASE_S": "2",
    "FAIRLANE_LOG_LEVEL": "error",  # nobody reads its pipe
}


@dataclass
class World:
    """What runs, and a tenant's client."""

    url: str
    gateway: psutil.Process
    queues: EmbeddedStore
    budgets: EmbeddedStore
    hand: HandWorker
    working: asyncio.Task[None]
    real: Process
    prometheus: Prometheus
    client: httpx.AsyncClient
    asked: set[asyncio.Task[None]] = field(default_factory=set)

    def ask(self, model: str = HAND, **fields: Any) -> None:
        """Send a request; whatever comes of it."""
        task = asyncio.create_task(self._ask({"model": model, "prompt": "One two", "max_tokens": 16, **fields}))
        self.asked.add(task)
        task.add_done_callback(self.asked.discard)

    async def _ask(self, body: dict[str, Any]) -> None:
        with suppress(httpx.HTTPError):
            await self.client.post("/v1/completions", json=body)

    async def flood(self, model: str = HAND, *, every_s: float = 0.1, **fields: Any) -> None:
        """Requests until cancelled."""
        while True:
            if len(self.asked) < 32:
                self.ask(model, **fields)
            await asyncio.sleep(every_s)


Fault = Callable[[World], Awaitable[None]]


async def slow(world: World) -> None:
    world.hand.step_s = 0.5
    await world.flood()


async def slow_tokens(world: World) -> None:
    world.hand.step_s = 0.1
    await world.flood()


async def failing(world: World) -> None:
    world.hand.fails = "broken"
    await world.flood()


async def not_taking(world: World) -> None:
    world.hand.taking = False
    await world.flood(every_s=1.0)


async def too_many(world: World) -> None:
    world.hand.taking = False
    await world.flood()


async def no_worker(world: World) -> None:
    await end(world.working)
    await world.flood()


async def worker_again(world: World) -> None:
    world.working = asyncio.create_task(world.hand.run())


async def full_pool(world: World) -> None:
    await world.flood(REAL, max_tokens=60, ignore_eos=True, service_tier="flex", every_s=0.02)


async def two_lanes(world: World) -> None:
    flex = asyncio.create_task(world.flood(REAL, max_tokens=60, ignore_eos=True, service_tier="flex", every_s=0.02))
    try:
        await world.flood(REAL, max_tokens=60, ignore_eos=True, service_tier="priority", every_s=0.2)
    finally:
        flex.cancel()


def _member(world: World) -> psutil.Process:
    return next(each for each in world.gateway.children() if MEMBER_FLAG in each.cmdline())


async def silent_process(world: World) -> None:
    _member(world).send_signal(signal.SIGSTOP)


async def loud_process(world: World) -> None:
    _member(world).send_signal(signal.SIGCONT)


async def no_budgets(world: World) -> None:
    await asyncio.to_thread(world.budgets.stop)
    await world.flood()


async def budgets_again(world: World) -> None:
    await asyncio.to_thread(world.budgets.start)


async def no_store(world: World) -> None:
    await asyncio.to_thread(world.queues.stop)


async def dead_worker(world: World) -> None:
    world.real.send(signal.SIGKILL)


FAULTS: dict[str, tuple[str, Fault]] = {
    "FairlaneSlowFirstToken": ("the worker takes half a second for a step; the target is 0.2 s", slow),
    "FairlaneSlowTokens": ("the worker takes 0.1 s for a step; the target is 10 ms", slow_tokens),
    "FairlaneErrors": ("the worker fails at every job", failing),
    "FairlaneQueueOld": ("the worker takes nothing; the longest wait is 8 s", not_taking),
    "FairlaneOverloaded": ("the same, and more requests than the lane may queue", too_many),
    "FairlaneKVShort": ("more sequences than the pool of 32 blocks holds", full_pool),
    "FairlaneRecomputes": ("both lanes on that pool, without a host pool", two_lanes),
    "FairlaneUnsettled": ("the store of budgets ends; `fail_open` admits without it", no_budgets),
    "FairlaneNoWorker": ("the only worker of a model ends, and requests go on", no_worker),
    "FairlaneProcessDown": ("SIGSTOP to one of two processes of the gateway", silent_process),
    "FairlaneTargetDown": ("SIGKILL to a worker", dead_worker),
    "FairlaneStoreDown": ("the store of queues ends", no_store),
}
"""In an order in which no fault is in the way of the next."""
UNDO: dict[str, Fault] = {
    "FairlaneUnsettled": budgets_again,
    "FairlaneNoWorker": worker_again,
    "FairlaneProcessDown": loud_process,
}


def shortened(directory: Path) -> list[Path]:
    """The rules with windows and patience of seconds."""
    written = []
    for path in (RECORDING, ALERTS):
        text = re.sub(r"\[(?:5|10)m\]", "[12s]", path.read_text())
        written.append(directory / path.name)
        written[-1].write_text(re.sub(r"for: \d+m", "for: 3s", text))
    return written


@asynccontextmanager
async def world(directory: Path) -> AsyncIterator[World]:
    """All that runs."""
    async with AsyncExitStack() as stack:
        queues, budgets = (EmbeddedStore(directory / name) for name in ("queues", "budgets"))
        for store in (queues, budgets):
            await asyncio.to_thread(store.start)
            stack.callback(store.stop)
        model = write_tiny_model(directory / REAL)
        fleet = Fleet(queues, model, "", lease_s=2.0)
        stack.callback(fleet.close)
        real = fleet.start(WORKER__KV_MEMORY="128KiB", WORKER__HOST_KV_MEMORY="0", **_lanes())
        await asyncio.to_thread(real.logged, "serves")
        connected = connections(queues.url, timeout_s=10.0, limit=16)
        stack.push_async_callback(connected.aclose)
        hand = HandWorker(connected.short, lease_ms=2_000)
        working = asyncio.create_task(hand.run())
        stack.callback(working.cancel)
        metrics_port = str(free_port())
        ports = {"FAIRLANE_METRICS_PORT": metrics_port, "FAIRLANE_QUOTA_REDIS_URL": budgets.url}
        child, url = await stack.enter_async_context(process(queues.url, **SETTINGS, **ports))
        jobs = {
            "fairlane-gateway": [f"127.0.0.1:{metrics_port}"],
            "fairlane-worker": [f"127.0.0.1:{real.metrics_port}"],
        }
        rule_files = shortened(directory)
        watching = await asyncio.to_thread(
            stack.enter_context, prometheus(directory / "prometheus", jobs, rule_files, every_s=3)
        )
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30.0))
        client.headers["authorization"] = f"Bearer {await _key(client)}"
        yield World(url, psutil.Process(child.pid), queues, budgets, hand, working, real, watching, client)


def _lanes() -> dict[str, str]:
    lanes = {name.removeprefix("FAIRLANE_"): value for name, value in SETTINGS.items()}
    return {name: value for name, value in lanes.items() if name.startswith("LANES__")}


async def _key(client: httpx.AsyncClient) -> str:
    tenant = {"id": "acme", "limits": {"tokens_per_day": 100_000_000}}
    (await client.post("/admin/v1/tenants", json=tenant, headers=OPERATOR)).raise_for_status()
    made = await client.post("/admin/v1/tenants/acme/keys", json={"name": "test"}, headers=OPERATOR)
    return str(made.raise_for_status().json()["key"])


async def fires(running: World, alert: str) -> float | None:
    """Seconds from the fault until the alert fires; None where it does not."""
    hand = running.hand
    hand.step_s, hand.fails, hand.taking = 0.0, "", True
    await _until(running, alert, is_firing=False)
    began_s = time.monotonic()
    fault = asyncio.create_task(_bring_about(running, alert))
    try:
        fired = await _until(running, alert, is_firing=True)
        return time.monotonic() - began_s if fired else None
    finally:
        fault.cancel()
        for each in running.asked:
            each.cancel()
        if alert in UNDO:
            await UNDO[alert](running)


async def _until(running: World, alert: str, *, is_firing: bool) -> bool:
    ends_s = time.monotonic() + LIMIT_S
    while time.monotonic() < ends_s:
        if (alert in await asyncio.to_thread(running.prometheus.firing)) == is_firing:
            return True
        await asyncio.sleep(0.5)
    return False


async def _bring_about(running: World, alert: str) -> None:
    await FAULTS[alert][1](running)


async def table(only: list[str]) -> bool:
    """Print it; whether all fired."""
    all_fired = True
    sys.stdout.write("| alert | made to fire by | after |\n| --- | --- | --- |\n")
    with tempfile.TemporaryDirectory() as made:
        async with world(Path(made)) as running:
            for alert, (fault, _) in FAULTS.items():
                if only and alert not in only:
                    continue
                after_s = await fires(running, alert)
                all_fired &= after_s is not None
                told = "it did not fire" if after_s is None else f"{after_s:.0f} s"
                sys.stdout.write(f"| {alert} | {fault} | {told} |\n")
                sys.stdout.flush()
    return all_fired


def main() -> int:
    """1 where one did not fire."""
    parser = argparse.ArgumentParser(description="Make every alert fire by its fault.")
    parser.add_argument("--only", nargs="*", default=[], metavar="ALERT", choices=list(FAULTS))
    assert FAULTS.keys() == {rule["alert"] for rule in rules(ALERTS)}
    os.environ.pop("OTEL_EXPORTER_OTLP_ENDPOINT", None)
    return 0 if asyncio.run(table(parser.parse_args().only)) else 1


if __name__ == "__main__":
    sys.exit(main())
