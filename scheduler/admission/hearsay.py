"""What gateways tell each other of what they have let in: sums by level.

Each gateway says so as often as it looks at workers and queues, and hears what the others said last. Deadlines are
told as time from then, since no two gateways have one clock. What comes between two looks nobody hears of in time:
what is promised meanwhile is booked where all gateways meet (`scheduler.queue.promises`).
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec

from fairlane.scheduler.admission.demand import BUCKET_MS, ServiceClass, Sum


class ClassReport(msgspec.Struct, frozen=True, array_like=True):
    """A `Sum` of one level. Dues are told for what is guaranteed alone: best effort breaks no promise."""

    rank: int
    best_effort: bool
    loads: int
    prefill_ms: float
    work_ms: float
    output_ms: float
    token_ms: float
    share: float
    dated: tuple[tuple[float, int, float], ...] = ()
    """(milliseconds from now, loads, their work)."""


class GatewayReport(msgspec.Struct, frozen=True, array_like=True):
    """What one gateway has let in and not yet seen end, when it said so."""

    levels: tuple[ClassReport, ...]
    promised: Mapping[int, float]
    """Part of the workers' time that it guaranteed of late, by lane rank."""


def level_report(level: ServiceClass, found: Sum, now_ms: float) -> ClassReport:
    """What a gateway says of one level."""
    dated = () if level.best_effort else found.dated.items()
    return ClassReport(
        level.rank,
        level.best_effort,
        found.loads,
        found.prefill_ms,
        found.work_ms,
        found.output_ms,
        found.token_ms,
        found.share,
        tuple((bucket * BUCKET_MS - now_ms, loads, work_ms) for bucket, (loads, work_ms) in dated),
    )


def sums_of(reports: Iterable[tuple[GatewayReport, int]], now_ms: float) -> dict[ServiceClass, Sum]:
    """All that other gateways have let in, each report with its age in milliseconds."""
    sums: dict[ServiceClass, Sum] = {}
    for report, age_ms in reports:
        for one in report.levels:
            found = sums.setdefault(ServiceClass(one.rank, one.best_effort), Sum())
            found.loads += one.loads
            found.prefill_ms += one.prefill_ms
            found.work_ms += one.work_ms
            found.output_ms += one.output_ms
            found.token_ms += one.token_ms
            found.share += one.share
            for in_ms, loads, work_ms in one.dated:
                bucket = int((now_ms - age_ms + in_ms) // BUCKET_MS)
                before, before_ms = found.dated.get(bucket, (0, 0.0))
                found.dated[bucket] = before + loads, before_ms + work_ms
    return sums


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[GatewayReport] = msgspec.msgpack.Decoder(GatewayReport)


def encode(report: GatewayReport) -> bytes:
    """As it goes through the store."""
    return _encoder.encode(report)


def decode(heard: Iterable[tuple[bytes, int]]) -> list[tuple[GatewayReport, int]]:
    """What other gateways said and how many milliseconds ago, but for what another release says in another way."""
    reports = []
    for said, age_ms in heard:
        with suppress(msgspec.DecodeError):
            reports.append((_decoder.decode(said), age_ms))
    return reports
