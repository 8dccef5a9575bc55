"""What needs an operator's attention, in words: who is affected, why, and since when. Pure.

An alarm compares the last minute's sums with the lanes' targets, and explains them by the workers' load. Since when it
holds is read from the history: the start of the run of minutes that fulfil the same condition."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from operator import attrgetter
from typing import Annotated, Literal, NamedTuple

from typing_extensions import TypedDict

from fairlane.common.views import about
from fairlane.gateway.errors import TABLE
from fairlane.gateway.insight.fleet_metrics.metrics_store import Step
from fairlane.gateway.insight.fleet_metrics.recorder import JUDGED
from fairlane.gateway.insight.fleet_metrics.sums import OTHERS, Buckets, LaneSums, Sums, percentiles_ms
from fairlane.scheduler.protocol.messages import WorkerStatus

# Whether a condition held in a span of time.
Held = Callable[[Sums], bool]
Kind = Literal["no_worker", "first_token", "pace", "waiting", "goodput", "refusals"]
Severity = Literal["bad", "warn"]
# Fewer measured requests in a minute are no alarm.
LEAST = 5
LEAST_GOODPUT = 0.9
MOST_REFUSED = 0.1
_LIMITED = frozenset(code for code, rule in TABLE.items() if rule.status == 429)
# A pool with less room than this share is full.
LEAST_ROOM = 0.05
# A holder of more than this share of the blocks in use is named.
LARGE_SHARE = 0.5
MOST_NAMED = 3
# A condition is evaluated over this many seconds of history, or one step of it if that is longer.
WINDOW_S = 60


class AlarmView(TypedDict):
    """One alarm: `what` and `why` are parts of a sentence without a final stop."""

    kind: Annotated[Kind, about("The figure that is wrong")]
    severity: Annotated[Severity, about("`warn`: only limits refuse, or a model may be retired")]
    lane: Annotated[str | None, about("The lane; null: all")]
    tenants: Annotated[list[str], about("The tenants most affected, at most three")]
    since: Annotated[float, about("Unix seconds since when it holds")]
    what: Annotated[str, about("Who is affected, with the figure and its target")]
    why: Annotated[str, about("The cause")]


class LaneState(NamedTuple):
    """One lane now: its targets and its queue."""

    name: str
    ttft_ms: float
    tpot_ms: float
    queued: int
    oldest_wait_ms: float


class Alarm(NamedTuple):
    """An alarm, and the condition by which its start is found in the history; None: unknown there."""

    view: AlarmView
    held: Held | None


def alarms(
    sums: Sums, lanes: Sequence[LaneState], workers: Sequence[WorkerStatus], models: Iterable[str], now_s: float
) -> list[Alarm]:
    """Return the alarms of a fleet, the gravest first. `since` of each is `now_s`."""
    found = list(_no_worker(workers, models, now_s))
    for lane in lanes:
        found += _of_lane(sums, lane, workers, now_s)
    found += _refusals(sums, now_s)
    return sorted(found, key=lambda alarm: alarm.view["severity"])


def began(held: Held, steps: Sequence[Step], step_s: int, now_s: float) -> float:
    """Return the start of the run of windows up to now in which a condition held; the newest may not be complete.

    Within its first window the run starts with the step at which the condition held for the steps so far."""
    last, size = int(now_s // step_s), max(1, WINDOW_S // step_s)
    windows = defaultdict[int, list[Step]](list)
    for step in steps:
        windows[(last - step.number) // size].append(step)
    start_s = now_s
    for age in count():
        sums, first_s = Sums(), None
        for step in windows.get(age, []):
            sums.add(step.sums)
            if first_s is None and held(sums):
                first_s = float(step.number * step_s)
        if first_s is not None and held(sums):
            start_s = first_s
        elif age:
            break
    return start_s


def _no_worker(workers: Sequence[WorkerStatus], models: Iterable[str], now_s: float) -> Iterable[Alarm]:
    serving = {worker.model for worker in workers if not worker.draining}
    draining = {worker.model for worker in workers} - serving
    missing = sorted({*models, *draining} - serving)
    if not workers:
        missing = missing or ["any model"]
    if missing:
        why = "all their workers are draining" if draining >= set(missing) else "no worker that serves them is alive"
        what = f"Requests for {_listed(missing)} are refused with 503"
        severity: Severity = "warn" if serving and not draining & set(missing) else "bad"  # it may have been retired
        yield Alarm(_view("no_worker", severity, None, [], what, why, now_s), None)


def _of_lane(sums: Sums, lane: LaneState, workers: Sequence[WorkerStatus], now_s: float) -> Iterable[Alarm]:
    seen = sums.lanes.get(lane.name, LaneSums())
    late = Counter({name: one.late.get(lane.name, 0) for name, one in sums.tenants.items() if name != OTHERS})
    tenants = [name for name, count in late.most_common(MOST_NAMED) if count]
    why, whose = _cause(lane, workers), f", most of {_listed(tenants)}" if tenants else ""

    def alarm(kind: Kind, what: str, held: Held) -> Alarm:
        return Alarm(_view(kind, "bad", lane.name, tenants, f"{what}{whose}", why, now_s), held)

    any_found = False
    figures: tuple[tuple[Kind, str, float, Callable[[LaneSums], Buckets]], ...] = (
        ("first_token", "First tokens", lane.ttft_ms, attrgetter("ttft")),
        ("pace", "Further tokens", lane.tpot_ms, attrgetter("tpot")),
    )
    for kind, words, target, of in figures:
        measured = _p95(of(seen))
        if measured is not None and measured > target:
            any_found = True
            what = f"{words} of the {lane.name} lane are slower than their target"
            compared = f" (one in twenty takes {_time(measured)} or longer instead of {_time(target)})"
            yield alarm(kind, what + compared, _slow(lane.name, of, target))
    if not any_found and lane.queued and lane.oldest_wait_ms > lane.ttft_ms:
        any_found = True
        what = f"{_requests(lane.queued)} of the {lane.name} lane wait, the oldest for {_time(lane.oldest_wait_ms)}"
        yield alarm("waiting", what, _waited(lane.name, lane.ttft_ms))
    missed = _missed(lane.name)
    if not any_found and missed(sums):
        what = f"{seen.judged - seen.met} of {_requests(seen.judged)} of the {lane.name} lane missed its targets"
        yield alarm("goodput", what, missed)


def _refusals(sums: Sums, now_s: float) -> Iterable[Alarm]:
    refused, ended = sum(sums.refusals.values()), sum(lane.requests for lane in sums.lanes.values())
    if not _is_refused(sums):
        return
    (code, most), *_ = Counter(sums.refusals).most_common()
    tenants = [name for name, one in _by_refusals(sums) if one and name != OTHERS][:MOST_NAMED]
    whose = f", most of {_listed(tenants)}" if tenants else ""
    ours = any(code in JUDGED for code in sums.refusals)
    what = f"{refused} of {_requests(max(ended, refused))} were refused in the last minute{whose}"
    cause = "the system had no room or failed" if code in JUDGED else _own(code)
    why = f"{'most' if most < refused else 'all'} with {code}: {cause}"
    yield Alarm(_view("refusals", "bad" if ours else "warn", None, tenants, what, why, now_s), _is_refused)


def _own(code: str) -> str:
    return "a limit of the tenant itself" if code in _LIMITED else "the key or tenant may not do this"


def _by_refusals(sums: Sums) -> list[tuple[str, int]]:
    return sorted(((name, one.refused) for name, one in sums.tenants.items()), key=lambda one: (-one[1], one[0]))


def _is_refused(sums: Sums) -> bool:
    refused, ended = sum(sums.refusals.values()), sum(lane.requests for lane in sums.lanes.values())
    return refused >= LEAST and refused >= MOST_REFUSED * ended


def _cause(lane: LaneState, workers: Sequence[WorkerStatus]) -> str:
    serving = [worker for worker in workers if not worker.draining]
    if not serving:
        return "no worker takes jobs"
    full = [worker for worker in serving if _is_full(worker)]
    if full:
        running = Counter[str]()
        for worker in full:
            running.update(worker.running)
        is_batch = running["throughput"] >= max(1, running["latency"])
        work = "batch work (the throughput lane)" if is_batch else "requests of the latency lane"
        whole = f"{len(full)} of {len(serving)} workers {'are' if len(full) > 1 else 'is'}"
        return f"{whole if len(serving) > 1 else 'the only worker is'} full of {work}{_holder(full)}"
    held = Counter[str]()
    for worker in serving:
        held.update(worker.kv_blocks)
    for tenant, blocks in held.most_common(1):
        if blocks > LARGE_SHARE * sum(worker.blocks_total for worker in serving):
            return f"{tenant} holds most of the workers' KV memory"
    if len(serving) < len(workers):
        return f"{len(workers) - len(serving)} of {_plural(len(workers), 'worker')} take no more jobs"
    if lane.queued and lane.oldest_wait_ms > lane.ttft_ms:
        return f"{_requests(lane.queued)} wait for room in a worker, the oldest for {_time(lane.oldest_wait_ms)}"
    slow = max(serving, key=lambda worker: worker.step_ms)
    running_now = sum(slow.running.values())
    if running_now > 1 and 0.0 < slow.single_stream_ms < slow.step_ms:
        alone = f"{_time(slow.step_ms)} a token instead of {_time(slow.single_stream_ms)} for one alone"
        lanes = " and ".join(f"{n} of the {name} lane" for name, n in Counter(slow.running).most_common() if n)
        return f"{running_now} sequences share {slow.worker_id} ({lanes}{_holder([slow])}): {alone}"
    return "no worker is full: the slowest requests tell more"


def _holder(workers: Iterable[WorkerStatus]) -> str:
    """Return whose sequences hold the most KV memory of these workers, in words; empty if none holds any."""
    held = Counter[str]()
    for worker in workers:
        held.update(worker.kv_blocks)
    return next((f"; {tenant} holds the most KV memory" for tenant, blocks in held.most_common(1) if blocks), "")


def _is_full(worker: WorkerStatus) -> bool:
    no_seat = 0 < worker.max_sequences <= sum(worker.running.values())
    return no_seat or worker.blocks_free < LEAST_ROOM * worker.blocks_total


def _p95(buckets: Buckets) -> float | None:
    return percentiles_ms(buckets, (0.95,))[0] if sum(buckets.values()) >= LEAST else None


def _slow(lane: str, of: Callable[[LaneSums], Buckets], target_ms: float) -> Held:
    def held(sums: Sums) -> bool:
        measured = _p95(of(sums.lanes.get(lane, LaneSums())))
        return measured is not None and measured > target_ms

    return held


def _waited(lane: str, target_ms: float) -> Held:
    return lambda sums: sums.lanes.get(lane, LaneSums()).oldest_wait_ms > target_ms


def _missed(lane: str) -> Held:
    def held(sums: Sums) -> bool:
        seen = sums.lanes.get(lane, LaneSums())
        return seen.judged >= LEAST and seen.met < LEAST_GOODPUT * seen.judged

    return held


def _view(
    kind: Kind, severity: Severity, lane: str | None, tenants: list[str], what: str, why: str, since: float
) -> AlarmView:
    return {
        "kind": kind,
        "severity": severity,
        "lane": lane,
        "tenants": tenants,
        "since": since,
        "what": what,
        "why": why,
    }


def _time(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1e3 else f"{ms / 1e3:.3g} s"


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _requests(count: int) -> str:
    return _plural(count, "request")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
