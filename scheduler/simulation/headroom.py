"""Headroom of tenants' limits in a recorded trace, and the requests that the limits rejected."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from fairlane.scheduler.simulation.trace import NO_DEMAND, Trace, TraceRow

MINUTE_MS, DAY_MS = 60_000.0, 86_400_000.0
_Amount = Callable[[TraceRow], int]


def _output(row: TraceRow) -> int:
    return row.choices * row.output_tokens


_prompt: _Amount = attrgetter("prompt_tokens")
_tokens: _Amount = attrgetter("tokens")
_WINDOWS: Mapping[str, tuple[float, _Amount]] = {
    "requests_per_minute": (MINUTE_MS, lambda _: 1),
    "tokens_per_minute": (MINUTE_MS, _tokens),
    "input_tokens_per_minute": (MINUTE_MS, _prompt),
    "output_tokens_per_minute": (MINUTE_MS, _output),
    "tokens_per_day": (DAY_MS, _tokens),
    "tokens_per_month": (31 * DAY_MS, _tokens),
}
_LARGEST: Mapping[str, _Amount] = {"max_prompt_tokens": _prompt, "max_output_tokens": attrgetter("output_tokens")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """One limit of one tenant."""

    tenant: str
    limit: str
    stated: int
    # Maximum in any window of the limit. If the trace is shorter than a day's or month's window, extrapolated at its
    # mean rate.
    used: float
    projected: bool
    # Requests of the tenant that any of its own limits rejected.
    refused: int


def headroom(trace: Trace) -> list[Headroom]:
    """Return each limit in the trace that can be evaluated, tightest first."""
    served: dict[str, list[TraceRow]] = {}
    refused: Counter[str] = Counter()
    for row in trace.rows:
        if row.tenant is None:
            continue
        if row.outcome in NO_DEMAND:
            refused[row.tenant] += 1
        else:
            served.setdefault(row.tenant, []).append(row)
    length_ms = trace.rows[-1].at_ms if trace.rows else 0.0
    found = [
        _of(tenant, name, stated, served.get(tenant, []), length_ms, refused[tenant])
        for tenant, known in trace.tenants.items()
        for name, stated in known.limits.items()
        if name in _WINDOWS or name in _LARGEST
    ]
    return sorted(found, key=lambda each: each.used / max(1, each.stated), reverse=True)


def _of(tenant: str, name: str, stated: int, rows: list[TraceRow], length_ms: float, refused: int) -> Headroom:
    if name in _LARGEST:
        used, projected = float(max(map(_LARGEST[name], rows), default=0)), False
    else:
        window_ms, amount = _WINDOWS[name]
        projected = window_ms > MINUTE_MS and length_ms < window_ms
        used = float(most_within(rows, window_ms, amount))
        if projected:
            used *= window_ms / max(MINUTE_MS, length_ms)
    return Headroom(tenant=tenant, limit=name, stated=stated, used=used, projected=projected, refused=refused)


def most_within(rows: Iterable[TraceRow], window_ms: float, amount: _Amount) -> int:
    """Return the maximum amount of requests that arrived within any such window; `rows` in order."""
    inside: deque[TraceRow] = deque()
    now = most = 0
    for row in rows:
        inside.append(row)
        now += amount(row)
        while row.at_ms - inside[0].at_ms >= window_ms:
            now -= amount(inside.popleft())
        most = max(most, now)
    return most
