"""The worker's composition root: every part of the process, built, opened and closed in one place."""

import asyncio
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import redis.asyncio
import torch
import uvloop
from prometheus_client import make_wsgi_app, start_http_server

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.protocol.gc_tuning import OF_A_WORKER, collect_seldom
from fairlane.scheduler.protocol.messages import ModelCard, WorkerStatus
from fairlane.scheduler.protocol.settings import SettingsError
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import RedisRegistry, card_sha256, queue_name
from fairlane.store import cluster
from fairlane.store.retry import StoreLink
from fairlane.worker.config import WorkerSettings
from fairlane.worker.engine.engine import Engine, build_engine
from fairlane.worker.engine.grammar import Grammars
from fairlane.worker.engine.kv_cache import KVMemoryError
from fairlane.worker.engine_thread import EngineThread
from fairlane.worker.heartbeat import CostReport, Heartbeat
from fairlane.worker.model.files import (
    ModelError,
    ModelFiles,
    fingerprint,
    model_card,
    reading,
    resolve,
    weights_digest,
)
from fairlane.worker.reports import EngineObserver
from fairlane.worker.server import WorkerServer
from fairlane.worker.telemetry import Metrics, PreemptionCosts, Traces, open_traces

__all__ = ["KVMemoryError", "ModelError", "serve"]

log = logging.getLogger(__name__)

CONNECTIONS = 32
"""To the store: one for the control stream, one per gateway that is published to at a time, a few for the rest."""


def serve(settings: WorkerSettings, environ: Mapping[str, str]) -> int:
    """Load the model, then serve until told to stop; the exit status.

    Raises SettingsError, ModelError, KVMemoryError.
    """
    section = settings.worker
    _check_metrics_port(settings.host, section.metrics_port)
    torch.set_num_threads(section.threads or usable_cores())
    files = resolve(settings.model, settings.models_directory)
    card, grammars = _with_grammars(model_card(files))
    costs = CostModel()
    with ThreadPoolExecutor(1) as aside:  # reading the weights takes no time of those who load them
        weights = aside.submit(weights_digest, files.directory)
        engine = _engine(settings, files, grammars, costs)
        with reading(files.name):
            card = msgspec.structs.replace(card, fingerprint=fingerprint(weights.result(), engine.precision))
    collect_seldom(OF_A_WORKER)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, environ, engine, costs, card))


def _engine(settings: WorkerSettings, files: ModelFiles, grammars: Grammars | None, costs: CostModel) -> Engine:
    section = settings.worker
    return build_engine(
        files,
        lanes=settings.lanes.lanes(),
        costs=costs,
        kv_bytes=section.kv_memory,
        host_kv_bytes=section.host_kv_memory,
        block_size=section.block_size,
        max_sequences=section.max_sequences,
        max_step_tokens=section.max_step_tokens,
        prefix_share=section.prefix_share if section.prefix_cache else None,
        dtype=section.dtype,
        device=section.device,
        grammars=grammars,
    )


def _with_grammars(card: ModelCard) -> tuple[ModelCard, Grammars | None]:
    """The card, saying whether there are grammars for its tokenizer."""
    try:
        return card, Grammars(card)
    except ValueError as error:
        log.warning("answers cannot be kept to a form, for the tokenizer's sake: %s", error)
        return msgspec.structs.replace(card, takes_grammars=False), None


def usable_cores(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores that this process may use: its affinity, or less by the container's quota (cgroup v2)."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return cores


async def _serve(
    settings: WorkerSettings, environ: Mapping[str, str], engine: Engine, costs: CostModel, card: ModelCard
) -> int:
    about = _about(settings, engine, card)
    traces = open_traces(environ, worker_id=about.worker_id, model=card.model)
    timeout_s = min(5.0, max(1.0, settings.lease_s / 2))
    async with _connected(settings.store_url, timeout_s) as client:
        server = WorkerServer(
            worker_id=about.worker_id,
            engine=EngineThread(engine, about.worker_id),
            queue=RedisQueue(client, about.queue, settings.lanes.lanes(), lease_ms=int(settings.lease_s * 1e3)),
            registry=RedisRegistry(client),
            card=card,
            link=StoreLink(timeout_s),
            heartbeat=Heartbeat(about, costs),
            observers=_observers(settings, about, costs, traces),
            lease_s=settings.lease_s,
            drain_s=settings.worker.drain_s,
            block_s=timeout_s / 2,
        )
        _hear_signals(server)
        log.info("%s serves %s", about.worker_id, about.queue)
        status = await server.run()
    if traces is not None:
        traces.close()
    return status


def _check_metrics_port(host: str, port: int) -> None:
    """Before the model is loaded, which takes seconds. Raises SettingsError where nobody can listen there."""
    if port:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            socket.create_server(address, family=family).close()
        except OSError as error:
            raise SettingsError(f"setting host or worker.metrics_port: {error.strerror}") from None


def _about(settings: WorkerSettings, engine: Engine, card: ModelCard) -> WorkerStatus:
    """Who this worker is, by a name that no process has had before: nothing of an earlier one is taken for its own."""
    cache = engine.runner.cache
    sha256 = card_sha256(card)
    return WorkerStatus(
        worker_id=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
        model=card.model,
        queue=queue_name(card.model, sha256),
        card_sha256=sha256,
        started_at_ms=time.time() * 1e3,
        block_size=cache.block_size,
        blocks_total=cache.blocks,
        host_slots_total=cache.host_slots,
        max_sequences=settings.worker.max_sequences,
    )


def _observers(
    settings: WorkerSettings, about: WorkerStatus, costs: CostModel, traces: Traces | None
) -> list[EngineObserver]:
    observers: list[EngineObserver] = [] if traces is None else [traces]
    if settings.worker.metrics_port:
        metrics = Metrics(about)
        report = CostReport(
            costs,
            block_size=about.block_size,
            blocks=about.blocks_total,
            host_slots=about.host_slots_total,
            max_sequences=about.max_sequences,
            max_step_tokens=settings.worker.max_step_tokens,
        )
        server, _ = start_http_server(settings.worker.metrics_port, settings.host, metrics.registry)
        server.set_app(report.beside(make_wsgi_app(metrics.registry)))
        observers += [metrics, report, PreemptionCosts(costs, about.block_size, metrics.preemption_found)]
    return observers


@asynccontextmanager
async def _connected(url: str, timeout_s: float) -> AsyncIterator[redis.asyncio.Redis]:
    """A client that reports every failure: whoever calls knows whether the call may be repeated."""
    client = cluster.client(url, limit=CONNECTIONS, timeout_s=timeout_s)
    try:
        yield client
    finally:
        await client.aclose()


def _hear_signals(server: WorkerServer) -> None:
    """The first drains, the second ends the process at once."""
    signals: list[int] = []

    def heard(number: int) -> None:
        signals.append(number)
        if len(signals) > 1:
            log.warning("told twice to stop: leaving at once")
            logging.shutdown()
            os._exit(128 + number)
        server.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, partial(heard, number))
