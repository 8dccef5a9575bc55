"""Models, workers and queues: what can be served, and the connections to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import redis.asyncio

from fairlane.common.settings_error import SettingsError
from fairlane.gateway.control.elections import Elections
from fairlane.gateway.fleet import FleetCache, StoredFleet
from fairlane.gateway.http.body_budget import BodyBudget
from fairlane.gateway.media.reader import Media
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.gateway.pipeline.admission import AllOpenRequests
from fairlane.gateway.pipeline.delivery import Dispatcher, QueueConnections
from fairlane.gateway.pipeline.media_desk import MediaDesk
from fairlane.gateway.pipeline.queue_watch import QueueWatch
from fairlane.gateway.pipeline.streams import JobStreams
from fairlane.gateway.runtime.setup import Setup, background
from fairlane.gateway.runtime.stores import Stores
from fairlane.quotas.scripts import library as budget_library
from fairlane.scheduler.links import unix_sockets
from fairlane.scheduler.links.listener import LinkListener
from fairlane.scheduler.links.tls import keep_fresh, listener_tls
from fairlane.scheduler.planner.ordering import QUEUE_WINDOW
from fairlane.scheduler.queue.keys import library
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import RedisRegistry
from fairlane.store.errors import STORE_ERRORS
from fairlane.store.retry import every

# A job's record outlives the job until a lapsed reservation is certain to be found: one lease for an outage of the
# store, one for the reservation's own lease, and some time for the reaper to run.
KEPT_LEASES, KEPT_MORE_S = 2.0, 5.0
DROP_FUNCTIONS_EVERY_S = 3_600.0


class Fleet:
    """The fleet as this gateway sees it, and its link to each queue."""

    def __init__(self, setup: Setup, stores: Stores, bodies: BodyBudget) -> None:
        """`bodies`: what the media of requests count against."""
        settings, gateway_id, telemetry = setup.settings, setup.gateway_id, setup.telemetry
        section = settings.gateway
        self._stores = stores
        self._lanes = setup.lanes
        self._lease_ms = round(settings.lease_s * 1e3)
        self._queues: dict[str, RedisQueue] = {}
        # Set after the first read of the fleet, successful or not.
        self.looked = asyncio.Event()
        self.registry = RedisRegistry(stores.main.patient)
        self.open_requests = AllOpenRequests(setup.lanes)
        watched_lease_s = min(settings.lease_s, section.reservation_lease_s)
        self.elections = Elections(
            stores.main, stores.budgets, gateway_id, watched_lease_s, lambda: self.cache.is_fresh
        )
        is_elected = self.elections.for_queues
        watch = QueueWatch(gateway_id, self.queue, self.registry, self.open_requests, is_elected=is_elected)
        kept_s = KEPT_LEASES * section.reservation_lease_s + KEPT_MORE_S
        self.dispatcher = Dispatcher(
            gateway_id, self._open_link, self.open_requests, kept_s=kept_s, is_elected=is_elected
        )
        self.media = MediaDesk(
            gateway_id=gateway_id, registry=self.registry, reader=Media(settings.media_limits), bodies=bodies
        )
        streams = JobStreams(self.dispatcher, self.media.received)
        self._links = LinkListener(gateway_id, self.registry.link_secret, streams)
        port = section.link_port + setup.process if section.link_port else 0
        self._link_host, self._link_port = section.link_host, port
        self._tls = listener_tls(settings.link_tls)
        self._tls_settings = settings.link_tls
        read = partial(
            TextModel, raw_prompts=section.completions_special_tokens, variables=section.chat_template_kwargs
        )
        self.cache = FleetCache(self.registry, watch.look, settings.lease_s, read=read)
        self.stored = StoredFleet(self.registry, self.cache, self.queue)
        telemetry.fleet.lanes = setup.lanes
        telemetry.fleet.models = lambda: self.cache.models.values()
        telemetry.wasted_tokens.read = lambda: self.dispatcher.wasted_tokens
        telemetry.links.set_function(lambda: len(self._links.links))
        telemetry.links_refused.read = lambda: self._links.refused
        telemetry.links_lost.read = lambda: streams.lost_links

    def queue(self, name: str) -> RedisQueue:
        if name not in self._queues:
            self._queues[name] = self._client(self._stores.main.short, name)
        return self._queues[name]

    def _client(self, client: redis.asyncio.Redis, name: str) -> RedisQueue:
        return RedisQueue(client, name, self._lanes, lease_ms=self._lease_ms)

    def _open_link(self, name: str) -> QueueConnections:
        reader = self._stores.main.reader()
        return QueueConnections(calls=self.queue(name), reader=self._client(reader, name), close=reader.aclose)

    def _changed(self) -> None:
        self.looked.set()
        self.dispatcher.keep_lines(self.cache.shards)

    async def _drop_old_functions(self) -> None:
        queues, budgets = library(self._lanes, self._lease_ms, QUEUE_WINDOW), budget_library()

        async def drop() -> None:
            if self.elections.for_queues():
                await queues.drop_others(self._stores.main.patient)
            if self.elections.for_budgets():
                await budgets.drop_others(self._stores.budgets.patient)

        await asyncio.sleep(DROP_FUNCTIONS_EVERY_S)  # not at each of the starts of a rolling upgrade
        await every(DROP_FUNCTIONS_EVERY_S, "dropping old functions", drop)

    async def _listen(self) -> str:
        host, port = self._link_host, self._link_port
        if host.startswith("/"):
            unix_sockets.remove_dead(Path(host), f"*-{'[0-9a-f]' * 8}.sock")
            path = Path(host) / f"{self.dispatcher.gateway_id}.sock"
            await self._links.listen_unix(path)
            return f"unix://{path}"
        bound = await self._links.listen(host, port, self._tls)
        return f"tcp://[{host}]:{bound}" if ":" in host else f"tcp://{host}:{bound}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            self.dispatcher.address = self.media.address = await self._listen()
        except OSError as error:
            raise SettingsError(f"setting gateway.link_host or gateway.link_port: {error.strerror}") from error
        with suppress(*STORE_ERRORS):
            await self.registry.link_secret()  # so that links can be opened while the store is away
        try:
            async with background(
                fleet_cache=self.cache.run(self._changed),
                elections=self.elections.run(),
                link_tls=keep_fresh(self._tls, self._tls_settings),
                old_functions=self._drop_old_functions(),
            ):
                yield
        finally:
            await self.elections.leave()
            await self.dispatcher.aclose()
            await self._links.aclose()
