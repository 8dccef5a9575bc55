"""Output of `fairlane advise`: the workers needed, targets, other settings, and tenants' limits."""

import math
from collections.abc import Sequence

import msgspec
import typer

from fairlane.cli.printer import Document, OutputForm, duration, printable, show, show_table
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.simulation.advice import Advice, Knob, Question, Target
from fairlane.scheduler.simulation.fleet.ceiling import USABLE, StoreLoad
from fairlane.scheduler.simulation.headroom import Headroom, headroom
from fairlane.scheduler.simulation.scenario import Stretch
from fairlane.scheduler.simulation.sizing import ATTAINMENT, LaneVerdict, Verdict
from fairlane.scheduler.simulation.trace import Trace, TraceRow

COUNT_COLUMNS = (
    "workers", "keeps the targets", "latency: TTFT kept %", "TPOT kept %", "TTFT p99", "TPOT p99",
    "throughput: TTFT kept %", "TTFT p99", "backlog drained after", "drain allowed",
)  # fmt: skip
TARGET_COLUMNS = ("target", "now", "99 % reached", "could be", "then kept %")
KNOB_COLUMNS = (
    "change", "setting", "workers", "keeps the targets", "shed %", "latency: kept of those served %", "TTFT p99",
    "TPOT p99", "throughput: TTFT p50", "TTFT p99", "backlog drained after",
)  # fmt: skip
HEADROOM_COLUMNS = ("tenant", "limit", "stated", "most used", "used %", "projected", "refused by a limit")
# Rows of limits, tightest first.
MOST_TENANTS = 50


def present(
    trace: str,
    load: float,
    rows: Sequence[TraceRow],
    read: Trace,
    stretch: Stretch,
    question: Question,
    advice: Advice,
    store: StoreLoad | None,
    output: OutputForm,
) -> None:
    """Show the advice, as a document or as tables. `store` is the load on the store, if a number of workers is
    enough."""
    limits = headroom(read)
    document = {
        "trace": trace,
        "load": load,
        "requests": len(rows),
        "played": {"requests": len(stretch.rows), "from_s": stretch.from_s, "to_s": stretch.to_s},
        "criterion": {
            "attainment": ATTAINMENT,
            "targets": {tier.lane.value: {"ttft_ms": tier.ttft_ms, "tpot_ms": tier.tpot_ms} for tier in question.tiers},
        },
        "workers": advice.sizing.workers,
        "edge": advice.sizing.is_edge,
        "counts": [_count(advice.sizing.verdicts[count]) for count in sorted(advice.sizing.verdicts)],
        "targets": msgspec.to_builtins(advice.targets),
        "knobs": [{"change": knob.change, "setting": knob.setting, **_count(knob.verdict)} for knob in advice.knobs],
        "store": None if store is None else {"busy": store.busy(1), "shards": store.shards},
        "headroom": msgspec.to_builtins(limits),
    }
    show(document, output, lambda: _tables(trace, rows, stretch, advice, store, limits))


def _count(verdict: Verdict) -> Document:
    return {
        "workers": verdict.workers,
        "keeps": verdict.keeps,
        "misses": list(verdict.misses),
        "lanes": msgspec.to_builtins(verdict.lanes),
        "drained_ms": verdict.drained_ms if verdict.drained_ms < math.inf else None,
        "drain_allowed_ms": verdict.drain_allowed_ms,
    }


def _tables(
    trace: str,
    rows: Sequence[TraceRow],
    stretch: Stretch,
    advice: Advice,
    store: StoreLoad | None,
    limits: Sequence[Headroom],
) -> None:
    typer.echo(_answer(advice))
    if store is not None and store.shards != 1:
        typer.echo(_store_limit(store))
    if len(stretch.rows) < len(rows):
        typer.echo(
            f"Played: {len(stretch.rows):,} of the {len(rows):,} requests of {printable(trace)}, its busiest "
            f"stretch (from {stretch.from_s:,.0f} s to {stretch.to_s:,.0f} s)."
        )
    counts = [_count_row(verdict) for _, verdict in sorted(advice.sizing.verdicts.items())]
    _table("Counts that were simulated", COUNT_COLUMNS, counts)
    _table("Targets", TARGET_COLUMNS, [_target_row(target) for target in advice.targets])
    _table("Other settings, with fewer workers", KNOB_COLUMNS, [_knob_row(knob) for knob in advice.knobs])
    _table("Tenants' limits", HEADROOM_COLUMNS, [_headroom_row(each) for each in limits[:MOST_TENANTS]])


def _answer(advice: Advice) -> str:
    sizing = advice.sizing
    if sizing.workers is None:
        best = sizing.verdicts[max(sizing.verdicts)]
        return f"No number of workers up to {best.workers} keeps the targets: missed are {', '.join(best.misses)}."
    edge = " One more misses by a little: take two more." if sizing.is_edge else ""
    noun = "worker keeps" if sizing.workers == 1 else "workers keep"
    return f"{sizing.workers} {noun} the lanes' targets (each for {100 * ATTAINMENT:g} % of its requests).{edge}"


def _store_limit(store: StoreLoad) -> str:
    need = "no number of shards is enough" if store.shards is None else f"it takes {store.shards} shards"
    return (
        f"The store is the limit: the queue's calls for {store.chats_per_s:,.0f} requests/s take "
        f"{100.0 * store.busy(1):,.0f} % of a core, of which {100.0 * USABLE:g} % are usable; {need} (docs/scaling.md)."
    )


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    if rows:
        typer.echo(f"\n{title}")
        show_table(columns, rows)


def _count_row(verdict: Verdict) -> Sequence[object]:
    latency, throughput = _lanes(verdict)
    return (
        verdict.workers,
        verdict.keeps or f"no: {', '.join(verdict.misses)}",
        _percent(None if latency is None else latency.ttft_kept),
        _percent(None if latency is None else latency.tpot_kept),
        *_p99(latency),
        _percent(None if throughput is None else throughput.ttft_kept),
        _p99(throughput)[0],
        *_drain(verdict),
    )


def _target_row(target: Target) -> Sequence[object]:
    could = "as it is" if target.could_be_ms is None else duration(target.could_be_ms)
    return target.setting, duration(target.target_ms), duration(target.p99_ms), could, _percent(target.kept)


def _knob_row(knob: Knob) -> Sequence[object]:
    latency, throughput = _lanes(knob.verdict)
    refused = 0.0 if latency is None else latency.refused
    kept = None if latency is None or refused == 1.0 else latency.kept / (1.0 - refused)
    ttft_ms = None if throughput is None else throughput.ttft_ms
    return (
        knob.change,
        knob.setting,
        knob.verdict.workers,
        knob.verdict.keeps or f"no: {', '.join(knob.verdict.misses)}",
        _percent(refused),
        _percent(kept),
        *_p99(latency),
        duration(ttft_ms.p50 if ttft_ms else None),
        _p99(throughput)[0],
        _drain(knob.verdict)[0],
    )


def _headroom_row(found: Headroom) -> Sequence[object]:
    part = _percent(found.used / found.stated if found.stated else None)
    return found.tenant, found.limit, found.stated, round(found.used), part, found.projected, found.refused


def _lanes(verdict: Verdict) -> tuple[LaneVerdict | None, LaneVerdict | None]:
    return verdict.lanes.get(LaneName.LATENCY), verdict.lanes.get(LaneName.THROUGHPUT)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100.0 * share:.2f}"


def _p99(lane: LaneVerdict | None) -> tuple[str, str]:
    spreads = (None, None) if lane is None else (lane.ttft_ms, lane.tpot_ms)
    ttft, tpot = (duration(found.p99 if found else None) for found in spreads)
    return ttft, tpot


def _drain(verdict: Verdict) -> tuple[str, str]:
    after = "never" if verdict.drained_ms == math.inf else duration(verdict.drained_ms)
    return after, duration(verdict.drain_allowed_ms)
