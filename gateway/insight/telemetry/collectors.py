"""Metrics that every request updates: one dict entry each, converted to Prometheus metric families only at a scrape.

The library's own children take a lock and four calls for each increment. Only the event loop writes these."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]


class FastCounter(Collector):
    """A counter with labels, or a gauge that goes up and down."""

    def __init__(
        self, family: Callable[[], CounterMetricFamily | GaugeMetricFamily], registry: CollectorRegistry
    ) -> None:
        self._family = family
        self._sums: defaultdict[Labels, float] = defaultdict(float)
        registry.register(self)

    def add(self, *labels: str, by: float = 1.0) -> None:
        self._sums[labels] += by

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        family = self._family()
        for labels, value in list(self._sums.items()):
            family.add_metric(labels, value)
        yield family


class Total(Collector):
    """A counter whose value is kept elsewhere: `read` is called at each scrape, from any thread."""

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry) -> None:
        # Must never decrease. 0 until it is set.
        self.read: Callable[[], float] = float
        self._family = partial(CounterMetricFamily, name, documentation)
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield self._family(value=self.read())


class Series:
    """One label set's histogram. Frequent observers keep a reference to it."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, figure: float) -> None:
        self.counts[bisect_left(self._bounds, figure)] += 1
        self.total += figure


class Distribution(Collector):
    """A histogram with labels."""

    def __init__(
        self, family: Callable[[], HistogramMetricFamily], bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._family = family
        self._bounds = bounds
        self._seen: dict[Labels, Series] = {}
        registry.register(self)

    def series(self, *labels: str) -> Series:
        if labels not in self._seen:
            self._seen[labels] = Series(self._bounds)
        return self._seen[labels]

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = self._family()
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        for labels, series in list(self._seen.items()):
            family.add_metric(labels, list(zip(names, accumulate(series.counts), strict=True)), series.total)
        yield family
