"""Export of a process's Prometheus registry over OTLP, so that there is one set of instruments.

Names, labels and buckets are those of a scrape. `OTEL_METRIC_EXPORT_INTERVAL` (milliseconds, default 60,000) sets the
interval; the last values are sent at shutdown."""

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from opentelemetry.sdk.metrics import export as otel
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.samples import Sample

from fairlane.common.otlp import metric_exporter, metric_interval_s

# By the last word of a metric's name.
UNITS = {"seconds": "s", "bytes": "By", "ratio": "1"}
LAST_S = 5.0

log = logging.getLogger(__name__)


@contextmanager
def exported_over_otlp(
    registry: CollectorRegistry, environ: Mapping[str, str], *, service: str, version: str, instance: str
) -> Iterator[None]:
    """Export a registry from a background thread if the environment enables it. Raises SettingsError."""
    exporter = metric_exporter(environ)
    if exporter is None:
        yield
        return
    resource = Resource.create({SERVICE_NAME: service, SERVICE_VERSION: version, SERVICE_INSTANCE_ID: instance})
    every_s, over = metric_interval_s(environ), threading.Event()

    def run() -> None:
        began_ns = time.time_ns()
        while not over.wait(every_s):
            _export(exporter, registry, resource, began_ns)
        _export(exporter, registry, resource, began_ns)

    thread = threading.Thread(target=run, name="metrics over OTLP", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LAST_S)
        exporter.shutdown()


def _export(exporter: otel.MetricExporter, registry: CollectorRegistry, resource: Resource, began_ns: int) -> None:
    try:
        metrics = converted(registry.collect(), began_ns, time.time_ns())
        scope = otel.ScopeMetrics(InstrumentationScope("fairlane"), metrics, schema_url="")
        exporter.export(otel.MetricsData([otel.ResourceMetrics(resource, [scope], schema_url="")]))
    except Exception:  # the thread must survive for the next export
        log.exception("metrics were not sent")


def converted(families: Iterable[Metric], began_ns: int, now_ns: int) -> list[otel.Metric]:
    """Convert Prometheus metrics to OpenTelemetry's, cumulative since `began_ns` (Unix time), without empty ones."""
    found = []
    for family in families:
        data = _data(family, began_ns, now_ns)
        if data.data_points:
            unit = UNITS.get(family.name.rpartition("_")[2], "")
            found.append(otel.Metric(family.name, family.documentation, unit, data))
    return found


def _data(family: Metric, began_ns: int, now_ns: int) -> otel.Sum | otel.Gauge | otel.Histogram:
    if family.type == "histogram":
        of_labels: defaultdict[frozenset[tuple[str, str]], list[Sample]] = defaultdict(list)
        for sample in family.samples:
            of_labels[frozenset(sample.labels.items() - {("le", sample.labels.get("le", ""))})].append(sample)
        histograms = [_histogram(dict(labels), samples, began_ns, now_ns) for labels, samples in of_labels.items()]
        return otel.Histogram(histograms, otel.AggregationTemporality.CUMULATIVE)
    is_counter = family.type == "counter"
    points = [
        otel.NumberDataPoint(sample.labels, began_ns if is_counter else 0, now_ns, sample.value)
        for sample in family.samples
        if not (is_counter and sample.name.endswith("_created"))
    ]
    if is_counter:
        return otel.Sum(points, otel.AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return otel.Gauge(points)


def _histogram(
    labels: dict[str, str], samples: Iterable[Sample], began_ns: int, now_ns: int
) -> otel.HistogramDataPoint:
    bounds, counts, total, below = [], [], 0.0, 0
    for sample in samples:
        if sample.name.endswith("_bucket"):
            counts.append(int(sample.value) - below)
            below = int(sample.value)
            bounds.append(float(sample.labels["le"]))
        elif sample.name.endswith("_sum"):
            total = sample.value
    return otel.HistogramDataPoint(
        labels,
        began_ns,
        now_ns,
        below,
        total,
        counts,
        [bound for bound in bounds if bound != math.inf],
        min=None,  # type: ignore[arg-type]  # optional in the format; Prometheus keeps neither
        max=None,  # type: ignore[arg-type]
    )
