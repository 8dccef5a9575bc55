"""`/healthz`, `/readyz`, `/version` and `/metrics`: for probes, load balancers and Prometheus."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fairlane.gateway import errors
from fairlane.gateway.api.store_checks import StoreChecks
from fairlane.gateway.errors import ApiError
from fairlane.gateway.fleet import FleetCache
from fairlane.gateway.insight.telemetry.process_metrics import ProcessMetrics
from fairlane.store.circuit_breaker import Availability

VERSION = metadata.version("fairlane")


@dataclass(eq=False)
class Health:
    """Health of this process. Only `/metrics` covers the other processes behind the port.

    `refusal` returns the error for new requests while the gateway shuts down."""

    fleet_cache: FleetCache
    processes: ProcessMetrics
    availability: Availability
    refusal: Callable[[], ApiError | None]
    store_checks: StoreChecks

    def routes(self) -> list[Route]:
        alive = ((path, self.alive) for path in ("/healthz", "/health", "/ping"))
        paths = (*alive, ("/readyz", self.ready), ("/version", self.version))
        return [Route(path, handler, methods=["GET"]) for path, handler in paths]

    async def alive(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def version(self, _: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def ready(self, _: Request) -> Response:
        missing = self._missing()
        return PlainTextResponse("ready\n") if missing is None else errors.response(missing)

    async def metrics(self, _: Request) -> Response:
        return Response(await self.processes.exposition(), media_type=CONTENT_TYPE_LATEST)

    def _missing(self) -> ApiError | None:
        refusal = self.refusal()
        if refusal is not None:
            return refusal
        if self.availability.is_away or not self.fleet_cache.is_fresh:
            return ApiError("The store does not answer.", "quota_store_unavailable", retry_after_s=1.0)
        if self.store_checks.refusal:
            return ApiError(self.store_checks.refusal, "quota_store_unavailable", retry_after_s=1.0)
        if not self.fleet_cache.models:
            return ApiError("No model has been announced.", "no_worker", retry_after_s=1.0)
        if not any(model.is_served for model in self.fleet_cache.models.values()):
            return ApiError("No worker serves any model.", "no_worker", retry_after_s=1.0)
        return None
