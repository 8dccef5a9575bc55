"""Gauges of the fleet, computed at each scrape: queues, workers, KV cache, lane targets.

Those with only the label `model` (waiting, running, KV usage) are for the endpoint pickers of llm-d and of the
Kubernetes Gateway API Inference Extension; docs/operations.md has the names to configure there."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from fairlane.gateway.fleet import ServedModel
from fairlane.gateway.insight.fleet_metrics.reporter import kv_used
from fairlane.scheduler.protocol.lanes import Lane, LaneName

_PREFIX = "fairlane_gateway_"
_BY_LANE = ("model", "lane")
_BY_MODEL = ("model",)


class FleetGauges(Collector):
    """Gauges of all known models. A model that is no longer known leaves no series behind."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # The latest snapshot of the fleet. Called by any thread.
        self.models: Callable[[], Iterable[ServedModel]] = tuple
        self.lanes: Mapping[LaneName, Lane] = {}
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        models = list(self.models())
        yield from self._queues(models)
        yield from self._fleet(models)
        yield from self._targets(models)

    def _queues(self, models: Iterable[ServedModel]) -> Iterator[GaugeMetricFamily]:
        queued = _gauge("lane_queued", "Number of jobs of a lane that wait for a worker.", _BY_LANE)
        tokens = _gauge("lane_queued_tokens", "Number of tokens of the prompts that wait in a lane.", _BY_LANE)
        running = _gauge("lane_running", "Number of jobs of a lane that the workers of a model run.", _BY_LANE)
        oldest = _gauge("lane_oldest_wait_seconds", "Age of the longest waiting job of a lane, in seconds.", _BY_LANE)
        waiting = _gauge("requests_waiting", "Number of jobs of all lanes that wait for a worker.", _BY_MODEL)
        for model in models:
            for lane, depth in model.depths.items():
                queued.add_metric((model.name, lane.value), depth.queued)
                tokens.add_metric((model.name, lane.value), depth.queued_tokens)
                at_work = sum(worker.running.get(lane, 0) for worker in model.workers)
                running.add_metric((model.name, lane.value), at_work)
                oldest.add_metric((model.name, lane.value), depth.oldest_wait_ms / 1e3)
            waiting.add_metric((model.name,), sum(depth.queued for depth in model.depths.values()))
        yield from (queued, tokens, running, oldest, waiting)

    def _fleet(self, models: Iterable[ServedModel]) -> Iterator[GaugeMetricFamily]:
        workers = _gauge("workers", "Number of workers that take jobs of a model; draining ones do not.", _BY_MODEL)
        running = _gauge("requests_running", "Number of sequences that the workers of a model run.", _BY_MODEL)
        kv = _gauge(
            "kv_usage_ratio", "Share of KV blocks that sequences hold, as a ratio; cached blocks are free.", _BY_MODEL
        )
        for model in models:
            workers.add_metric((model.name,), sum(not worker.draining for worker in model.workers))
            running.add_metric((model.name,), sum(sum(worker.running.values()) for worker in model.workers))
            kv.add_metric((model.name,), kv_used(model.workers))
        yield from (workers, running, kv)

    def _targets(self, models: Iterable[ServedModel]) -> Iterator[GaugeMetricFamily]:
        ttft = _gauge("lane_ttft_target_seconds", "Target of a lane for the first token, in seconds.", ("lane",))
        tpot = _gauge("lane_tpot_target_seconds", "Target of a lane for each further token, in seconds.", _BY_LANE)
        longest = _gauge("lane_max_wait_seconds", "Wait after which a job of a lane ends, in seconds.", ("lane",))
        most = _gauge("lane_max_queued", "Number of jobs that may wait in a lane per model.", ("lane",))
        for lane in self.lanes.values():
            ttft.add_metric((lane.name.value,), lane.ttft_ms / 1e3)
            longest.add_metric((lane.name.value,), lane.max_wait_ms / 1e3)
            most.add_metric((lane.name.value,), lane.max_queued)
            for model in models:
                tpot.add_metric((model.name, lane.name.value), lane.tpot_on(model.single_stream_ms) / 1e3)
        yield from (ttft, tpot, longest, most)


def _gauge(name: str, documentation: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, documentation, labels=labels)
