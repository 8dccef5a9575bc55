"""What another tenant and the gateway's memory notice of a flood."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from tests.support.system.harness import MODEL, Server
from tests.system.attacks.controls import Meter, cpu_s, replay
from tests.system.attacks.crowds import PROBES
from tests.system.attacks.floods import FLOODS
from tests.system.attacks.rows import Row
from tests.system.attacks.target import PERSON, PROXY, bearer, heard, request, tenants

QUIET_REQUESTS = 100
PROBE_EVERY = 20
"""Requests between probes, each on a connection of its own."""
MOST_BYTES = 400 * 2**20
MOST_KEPT_BYTES = 50 * 2**20
P99_FACTOR, P99_MORE_MS = 1.5, 20.0
MOST_PROBE_MS = 2_000.0
"""As long as the chart's probes wait."""
LOOP_MORE_MS, LOOP_TOKEN_SHARE, MOST_LOOP_PROBE_MS = 60.0, 0.1, 50.0
"""Where the event loop is attacked: over the control's P99, of the quiet P50 (one token's time), and of a probe over
the control's slowest."""
CALMS_S = 10.0
"""How long after an attack the memory may take to come back."""
EXPECTED_OF_THE_LOOP = (
    f"all 200; P99 ≤ control's P99 + {LOOP_MORE_MS:.0f} ms + {LOOP_TOKEN_SHARE:.0%} of quiet P50; "
    f"probes ≤ control's slowest + {MOST_LOOP_PROBE_MS:.0f} ms; memory as above"
)
EXPECTED = (
    f"all 200; P99 ≤ {P99_FACTOR} quiet P99 + {P99_MORE_MS:.0f} ms; probes ≤ {MOST_PROBE_MS / 1e3:.0f} s; "
    f"≤ {MOST_BYTES >> 20} MiB, of which ≤ {MOST_KEPT_BYTES >> 20} more than before are kept"
)


@dataclass(frozen=True, slots=True)
class Probed:
    """Another tenant's requests, one after the other."""

    p50_ms: float
    p99_ms: float
    statuses: dict[str, int]
    slowest_probe_ms: float
    probes: dict[str, int]
    """By what they were answered."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One flood."""

    name: str
    answers: dict[str, int]
    quiet: Probed
    during: Probed
    control: Probed | None
    """While as much processor time was spent by others, where the event loop is attacked."""
    start_bytes: int
    peak_bytes: int
    kept_bytes: int

    @property
    def faults(self) -> list[str]:
        """What it should not have done."""
        most_ms, most_probe_ms = P99_FACTOR * self.quiet.p99_ms + P99_MORE_MS, MOST_PROBE_MS
        if self.control is not None:
            base_ms = max(self.quiet.p99_ms, self.control.p99_ms)
            most_ms = base_ms + LOOP_MORE_MS + LOOP_TOKEN_SHARE * self.quiet.p50_ms
            most_probe_ms = self.control.slowest_probe_ms + MOST_LOOP_PROBE_MS
        found = {
            f"P99 over {most_ms:.0f} ms": self.during.p99_ms > most_ms,
            f"answers to the other tenant: {self.during.statuses}": self.during.statuses.keys() != {"200"},
            f"answers to probes: {self.during.probes}": self.during.probes.keys() != {"200"},
            "a late probe": self.during.slowest_probe_ms > most_probe_ms,
            "too much memory": self.peak_bytes > MOST_BYTES,
            "too much memory kept": self.kept_bytes - self.start_bytes > MOST_KEPT_BYTES,
        }
        return [fault for fault, is_so in found.items() if is_so]

    @property
    def row(self) -> Row:
        """It in the table."""
        flood, during, quiet = FLOODS[self.name], self.during, self.quiet
        count = sum(during.statuses.values())
        p50s = f"P50 {quiet.p50_ms:.0f} → {during.p50_ms:.0f}"
        alone = [] if self.control is None else [_shown(self.control)]
        memory = " → ".join(f"{size >> 20}" for size in (self.start_bytes, self.peak_bytes, self.kept_bytes))
        told = [
            f"P99 {quiet.p99_ms:.0f} → {during.p99_ms:.0f} ms of {count} ({p50s})",
            f"slowest probe {during.slowest_probe_ms:.0f} ms",
            *alone,
            f"{memory} MiB",
            f"told: {', '.join(f'{count:,} {status}' for status, count in sorted(self.answers.items()))}",
            *self.faults,
        ]
        expected = EXPECTED_OF_THE_LOOP if flood.is_of_the_loop else EXPECTED
        return Row(flood.kind, flood.attacked, expected, "; ".join(told), not self.faults)


def _shown(control: Probed) -> str:
    return (
        f"control: P99 {control.p99_ms:.0f} ms of {sum(control.statuses.values())} (P50 {control.p50_ms:.0f}), "
        f"slowest probe {control.slowest_probe_ms:.0f} ms"
    )


def probe(server: Server, key: str, goes_on: Callable[[int], bool], *, by_proxy: bool = False) -> Probed:
    """Short requests on one connection until there are enough, and probes on others between them."""
    took_ms: list[float] = []
    statuses: Counter[str] = Counter()
    probes: Counter[str] = Counter()
    slowest_ms = 0.0
    asked = {"model": MODEL, "prompt": "Hello", "max_tokens": 1, "service_tier": "priority"}
    source = PROXY if by_proxy else PERSON
    headers = {"x-forwarded-for": PERSON} if by_proxy else {}
    transport = httpx.HTTPTransport(local_address=source)
    given = bearer(key) | headers
    with httpx.Client(base_url=server.url, headers=given, timeout=60.0, transport=transport) as client:
        while goes_on(len(took_ms)):
            began = time.perf_counter()
            try:
                statuses[_told(client.post("/v1/completions", json=asked))] += 1
            except httpx.TransportError as error:
                statuses[type(error).__name__] += 1
            took_ms.append((time.perf_counter() - began) * 1e3)
            if len(took_ms) % PROBE_EVERY == 1:
                for path in PROBES:
                    began = time.perf_counter()
                    probes[heard(tenants(server), request("GET", path, headers), source=source).outcome] += 1
                    slowest_ms = max(slowest_ms, (time.perf_counter() - began) * 1e3)
    took_ms.sort()
    p50_ms, p99_ms = took_ms[len(took_ms) // 2], took_ms[int(0.99 * (len(took_ms) - 1))]
    return Probed(p50_ms, p99_ms, dict(statuses), slowest_ms, dict(probes))


def _told(answer: httpx.Response) -> str:
    """Its status, and its code where it is a refusal."""
    return str(answer.status_code) if answer.is_success else f"{answer.status_code} {answer.json()['error']['code']}"


def peak_bytes(process: psutil.Process) -> int:
    """The most that it had in memory since `forget_peak`."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def forget_peak(process: psutil.Process) -> None:
    """Count anew from here."""
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def measure(server: Server, name: str, seconds: float) -> Measured:
    """One flood, with tenants of its own on each side."""
    flood, gateway = FLOODS[name], server.child("gateway")
    told = name.replace(" ", "-")
    attackers = [server.tenant(f"attacker-{number}-{told}") for number in range(flood.tenants)]
    person = server.tenant(f"person-{told}")
    used_s, began_s = cpu_s(gateway), time.monotonic()
    quiet = probe(server, person, lambda count: count < QUIET_REQUESTS, by_proxy=flood.by_proxy)
    quiet_share = (cpu_s(gateway) - used_s) / (time.monotonic() - began_s)
    start = gateway.memory_info().rss
    forget_peak(gateway)
    command = [sys.executable, "-m", "tests.system.attacks.floods", server.url, name, str(seconds), *attackers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacking:
        meter = Meter(psutil.Process(attacking.pid), gateway, quiet_share)
        with meter.running():
            during = probe(server, person, lambda count: attacking.poll() is None or count < 1, by_proxy=flood.by_proxy)
        answers = json.loads(attacking.communicate()[0] or "{}")
    peak = peak_bytes(gateway)
    until = time.monotonic() + CALMS_S
    while gateway.memory_info().rss - start > MOST_KEPT_BYTES and time.monotonic() < until:
        time.sleep(0.2)
    kept, control = gateway.memory_info().rss, None
    if flood.is_of_the_loop:
        with replay(meter) as goes_on:
            control = probe(server, person, lambda count: goes_on() or count < 1)
    return Measured(name, answers, quiet, during, control, start, peak, kept)
