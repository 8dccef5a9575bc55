"""Metrics that every request adds to: an entry of a dict each, made Prometheus' own only when somebody reads them.

The library's children take a lock and four calls for each step of a counter, and a request takes a dozen of them.
Written in the event loop's thread alone, read in any.
"""

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
    """Sums by their labels: a counter, or a gauge that goes up and down."""

    def __init__(
        self,
        kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
        name: str,
        documentation: str,
        labels: Sequence[str],
        registry: CollectorRegistry,
    ) -> None:
        self._family: Callable[[], CounterMetricFamily | GaugeMetricFamily]
        self._family = partial(kind, name, documentation, labels=labels)
        self._sums: defaultdict[Labels, float] = defaultdict(float)
        registry.register(self)

    def add(self, *labels: str, by: float = 1.0) -> None:
        """Count."""
        self._sums[labels] += by

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """As the library writes it."""
        family = self._family()
        for labels, value in list(self._sums.items()):
            family.add_metric(labels, value)
        yield family


class Total(Collector):
    """A counter that somebody else keeps: `read` when it is asked for, by any thread."""

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry) -> None:
        self.read: Callable[[], float] = float
        """Never less than it said before; 0 until somebody keeps it."""
        self._family = partial(CounterMetricFamily, name, documentation)
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """As the library writes it."""
        yield self._family(value=self.read())


class Series:
    """The figures of one set of labels. Whoever observes often asks for it once."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """How many between a bound and the one before it."""
        self.total = 0.0

    def observe(self, figure: float) -> None:
        """Count it in."""
        self.counts[bisect_left(self._bounds, figure)] += 1
        self.total += figure


class Distribution(Collector):
    """Figures by their labels and size: a histogram."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        """`bounds`: ascending; each belongs to what is below it."""
        self._family: Callable[[], HistogramMetricFamily]
        self._family = partial(HistogramMetricFamily, name, documentation, labels=labels)
        self._bounds = bounds
        self._seen: dict[Labels, Series] = {}
        registry.register(self)

    def series(self, *labels: str) -> Series:
        """Of these labels' values; a new one is empty."""
        found = self._seen.get(labels)
        if found is None:
            found = self._seen[labels] = Series(self._bounds)
        return found

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """As the library writes it."""
        family = self._family()
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        for labels, series in list(self._seen.items()):
            family.add_metric(labels, list(zip(names, accumulate(series.counts), strict=True)), series.total)
        yield family
