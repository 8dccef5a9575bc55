"""The HorizontalPodAutoscaler on gateways: a gateway's processor time is so much for each request and each token of its
stream, as `make bench-gateway` measures it, so the same day's load needs so many processors at each moment."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.autoscaling.fleet import Autoscaler, FleetLoad, ScalingRule
from benchmarks.autoscaling.workers import LATENCY, day
from fairlane.scheduler.simulation.trace import TraceRow

REQUEST_US, TOKEN_US = 414.0, 10.3
"""docs/performance.md: CPU per plain request, and per streamed token, at 64 clients."""
TIMES = 400
"""How many such loads come together: one alone keeps no gateway busy."""
TARGET_PERCENT, START_MS, LOOK_MS = 70.0, 15_000.0, 15_000.0
RULE = ScalingRule(
    least=2, most=20, running={LATENCY: TARGET_PERCENT}, every_ms=LOOK_MS, start_ms=START_MS,
    down_window_ms=300_000.0, down_period_ms=60_000.0,
)  # fmt: skip
"""Of the chart's `gateway.autoscaling`; `running` is processor time in per cent of one core."""


@dataclass(frozen=True, slots=True)
class GatewayHours:
    """What it came to."""

    gateway_hours: float
    most: int
    busiest_percent: float
    """The most that a gateway's core was used, on average over 15 s."""
    full_s: float
    """How long it was more than all of it: requests wait then."""


def play() -> GatewayHours:
    """The day, look by look; what a look sees is the stretch before it."""
    scaler, used = Autoscaler(RULE), _used(list(day()))
    wanted = serving = RULE.least
    paid_ms, most, busiest, full_s = 0.0, wanted, 0.0, 0.0
    for look, percent in enumerate(used):
        busiest = max(busiest, percent / serving)
        full_s += (percent > 100.0 * serving) * LOOK_MS / 1e3
        paid_ms += max(wanted, serving) * LOOK_MS
        serving = wanted  # what the last look started is ready by the next
        wanted = scaler.wanted(look * LOOK_MS, FleetLoad({}, {LATENCY: int(percent)}), wanted)
        most = max(most, wanted)
    return GatewayHours(paid_ms / 3.6e6, most, busiest, full_s)


def _used(rows: Sequence[TraceRow]) -> list[float]:
    """Processor time of each look's stretch, in per cent of one core. A stream's tokens count where it arrived."""
    used = [0.0] * (1 + int(rows[-1].at_ms // LOOK_MS))
    for row in rows:
        used[int(row.at_ms // LOOK_MS)] += TIMES * (REQUEST_US + TOKEN_US * row.output_tokens)
    return [us / (LOOK_MS * 1e3) * 100.0 for us in used]
