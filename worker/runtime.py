"""The worker's composition root: builds, opens and closes every part of the process."""

import asyncio
import logging
import os
import secrets
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager, closing
from functools import partial
from typing import Any

import msgspec
import redis.asyncio
import uvloop
from prometheus_client import make_wsgi_app, start_http_server

from fairlane.common.gc_tuning import OF_A_WORKER, collect_seldom
from fairlane.common.otlp import sends_metrics
from fairlane.common.settings_error import SettingsError
from fairlane.scheduler.links.dialer import Dialer, GatewayPeer
from fairlane.scheduler.links.tls import dialer_tls, keep_fresh
from fairlane.scheduler.protocol.messages import ModelCard, WorkerStatus
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import RedisRegistry, card_sha256, queue_name
from fairlane.scheduler.queue.shards import shard_names
from fairlane.store import checks, cluster, schema
from fairlane.store.errors import STORE_ERRORS
from fairlane.store.retry import StoreLink
from fairlane.worker.config import WorkerSettings
from fairlane.worker.engine.engine import OpenedEngine
from fairlane.worker.engine_thread import EngineThread
from fairlane.worker.heartbeat import CostReport, Heartbeat
from fairlane.worker.job_log import JobLog
from fairlane.worker.lifecycle import ENDING, Lifecycle
from fairlane.worker.reports import EngineObserver
from fairlane.worker.server import WorkerServer
from fairlane.worker.telemetry import Metrics, PreemptionCosts
from fairlane.worker.traces import Traces, open_traces

log = logging.getLogger(__name__)

STORE_CHECK_S = 2.0
# Connections to the store for reports, leases and the registry, in addition to one that reads each shard's streams.
CONNECTIONS = 32


def serve(
    settings: WorkerSettings, environ: Mapping[str, str], open_engine: Callable[[WorkerSettings], OpenedEngine]
) -> int:
    """Open the engine, then serve until stopped; return the exit status. Raises SettingsError."""
    _check_metrics_port(settings.host, settings.worker.metrics_port)
    asyncio.run(_check_store(settings.store_url))
    opened = open_engine(settings)
    collect_seldom(OF_A_WORKER)
    with closing(opened), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, environ, opened))


async def _serve(settings: WorkerSettings, environ: Mapping[str, str], opened: OpenedEngine) -> int:
    shards = settings.worker.queue_shards
    card = opened.card if shards == 1 else msgspec.structs.replace(opened.card, shards=shards)
    about = _about(opened, card)
    traces = open_traces(environ, worker_id=about.worker_id, model=opened.card.model)
    metrics = Metrics(about, engine=settings.worker.engine)
    timeout_s = min(5.0, max(1.0, settings.lease_s / 2))
    async with aclosing(cluster.client(settings.store_url, limit=CONNECTIONS + shards, timeout_s=timeout_s)) as client:
        registry, link, tls = RedisRegistry(client), StoreLink(timeout_s), dialer_tls(settings.link_tls)
        server = WorkerServer(
            worker_id=about.worker_id,
            engine=EngineThread(opened.engine, about.worker_id, measured=opened.remote is None),
            queues=[
                RedisQueue(client, name, settings.lanes.lanes(), lease_ms=int(settings.lease_s * 1e3))
                for name in shard_names(about.queue)
            ],
            registry=registry,
            card=card,
            link=link,
            dial=partial(dial, about.worker_id, about.queue, registry, tls=tls),
            heartbeat=Heartbeat(about, opened.costs),
            observers=_observers(settings, environ, opened, metrics, traces),
            remote=opened.remote,
            lease_s=settings.lease_s,
            drain_s=settings.worker.drain_s,
            block_s=timeout_s / 2,
        )
        _handle_signals(server)
        lifecycle, from_any_thread = server.lifecycle, asyncio.get_running_loop().call_soon_threadsafe
        opened.watch(
            lambda is_up: from_any_thread(lifecycle.engine_changed, is_up),
            lambda change: from_any_thread(lifecycle.engine_replaced, change),
        )
        await _join(link, client, lifecycle)
        log.info("%s serves %s", about.worker_id, about.queue)
        reading = link.persist("reading the links' secret", registry.link_secret)
        async with alongside(reading, keep_fresh(tls, settings.link_tls)):
            with metrics.exported_over_otlp(environ):
                status = await server.run()
    if traces is not None:
        traces.close()
    return status


@asynccontextmanager
async def alongside(*work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run work in the background, and cancel it at the end of the block."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def dial(
    worker_id: str,
    queue: str,
    registry: RedisRegistry,
    gateway_id: str,
    address: str,
    peer: GatewayPeer,
    *,
    tls: ssl.SSLContext | None = None,
) -> Dialer:
    """Return a worker's link to a gateway, which is not open yet."""
    return Dialer(
        address,
        worker_id=worker_id,
        queue=queue,
        gateway_id=gateway_id,
        secret=registry.link_secret,
        peer=peer,
        tls=tls,
    )


def _check_metrics_port(host: str, port: int) -> None:
    if port:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            socket.create_server(address, family=family).close()
        except OSError as error:
            raise SettingsError(f"setting host or worker.metrics_port: {error.strerror}") from None


async def _check_store(url: str) -> None:
    # Before the model is loaded. A store that does not answer is accepted: `_join` waits for it.
    try:
        async with asyncio.timeout(STORE_CHECK_S):
            found = await checks.faults(url, checks.WORKER_COMMANDS, timeout_s=STORE_CHECK_S)
    except STORE_ERRORS:
        return
    for fault in found:
        _refuse(fault)
        log.warning("the store has a fault: %s", fault)


async def _join(link: StoreLink, client: redis.asyncio.Redis, lifecycle: Lifecycle) -> None:
    """Wait for the store, unless stopped, and record this release's schema in it. Raises SettingsError if the store's
    schema is another one: it may have been away at the start, or have been restored since."""
    joining = asyncio.ensure_future(link.persist("schema", partial(schema.join, client)))
    stopping = asyncio.ensure_future(lifecycle.until(*ENDING))
    try:
        await asyncio.wait((joining, stopping), return_when=asyncio.FIRST_COMPLETED)
        if joining.done() and (refusal := joining.result()):
            _refuse(checks.schema_fault(refusal))
    finally:
        joining.cancel()
        stopping.cancel()


def _refuse(fault: checks.Fault) -> None:
    if fault.kind in checks.REFUSED:
        raise SettingsError(f"the store cannot be used, {fault}")


def _about(opened: OpenedEngine, card: ModelCard) -> WorkerStatus:
    # No earlier process had this id, so the worker never inherits another's leases.
    sizes = opened.engine.planner.pool_sizes
    sha256 = card_sha256(card)
    return WorkerStatus(
        worker_id=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
        model=card.model,
        queue=queue_name(card.model, sha256),
        card_sha256=sha256,
        started_at_ms=time.time() * 1e3,
        block_size=sizes.block_size,
        blocks_total=sizes.blocks,
        host_slots_total=sizes.host_slots,
        max_sequences=opened.engine.planner.max_sequences,
    )


def _observers(
    settings: WorkerSettings, environ: Mapping[str, str], opened: OpenedEngine, metrics: Metrics, traces: Traces | None
) -> list[EngineObserver]:
    observers: list[EngineObserver] = [JobLog()] if traces is None else [JobLog(), traces]
    sizes = opened.engine.planner.pool_sizes
    if settings.worker.metrics_port or sends_metrics(environ):
        observers += [metrics, PreemptionCosts(opened.costs, sizes.block_size, metrics.preemption_found)]
    if settings.worker.metrics_port:
        report = CostReport(
            opened.costs,
            block_size=sizes.block_size,
            blocks=sizes.blocks,
            host_slots=sizes.host_slots,
            max_sequences=opened.engine.planner.max_sequences,
            max_step_tokens=opened.max_step_tokens,
        )
        server, _ = start_http_server(settings.worker.metrics_port, settings.host, metrics.registry)
        server.set_app(report.mounted_on(make_wsgi_app(metrics.registry)))
        observers.append(report)
    return observers


def _handle_signals(server: WorkerServer) -> None:
    signals: list[int] = []

    def on_signal(number: int) -> None:
        signals.append(number)
        if len(signals) > 1:
            log.warning("second signal: exiting at once")
            logging.shutdown()
            os._exit(128 + number)
        server.lifecycle.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, partial(on_signal, number))
