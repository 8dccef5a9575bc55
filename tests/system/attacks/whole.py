"""Each attack of `bodies.py` in full: what another tenant notices of it, and what it leaves in the gateway's memory.

python -m tests.system.attacks.whole [--only NAME] [--seconds 10] [--json FILE]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import psutil

from tests.system.attacks.bodies import NAMES
from tests.system.harness import MODEL, Server

QUIET_REQUESTS = 100
MOST_BYTES = 400 * 2**20
MOST_KEPT_BYTES = 50 * 2**20
P99_FACTOR, P99_MORE_MS = 1.5, 20.0
CALMS_S = 10.0
"""How long after an attack the memory may take to come back."""


@dataclass(frozen=True, slots=True)
class Probed:
    """Another tenant's requests, one after the other."""

    p50_ms: float
    p99_ms: float
    statuses: dict[str, int]


@dataclass(frozen=True, slots=True)
class Row:
    """One attack: expected and seen."""

    attack: str
    answers: dict[str, int]
    quiet: Probed
    during: Probed
    start_bytes: int
    peak_bytes: int
    kept_bytes: int

    @property
    def faults(self) -> list[str]:
        """What it should not have done."""
        most_ms = P99_FACTOR * self.quiet.p99_ms + P99_MORE_MS
        found = {
            f"P99 {self.during.p99_ms:.0f} ms, at most {most_ms:.0f}": self.during.p99_ms > most_ms,
            f"answers to the other tenant: {self.during.statuses}": self.during.statuses.keys() != {"200"},
            f"memory {self.peak_bytes >> 20} MiB": self.peak_bytes > MOST_BYTES,
            f"kept {self.kept_bytes - self.start_bytes >> 20} MiB": self.kept_bytes - self.start_bytes
            > MOST_KEPT_BYTES,
        }
        return [fault for fault, is_so in found.items() if is_so]


def probe(server: Server, key: str, goes_on: Callable[[int], bool]) -> Probed:
    """Short requests until there are enough."""
    took_ms: list[float] = []
    statuses: Counter[str] = Counter()
    asked = {"model": MODEL, "prompt": "Hello", "max_tokens": 1, "service_tier": "priority"}
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {key}"}, timeout=60.0) as client:
        while goes_on(len(took_ms)):
            began = time.perf_counter()
            statuses[str(client.post("/v1/completions", json=asked).status_code)] += 1
            took_ms.append((time.perf_counter() - began) * 1e3)
    took_ms.sort()
    return Probed(took_ms[len(took_ms) // 2], took_ms[int(0.99 * (len(took_ms) - 1))], dict(statuses))


def peak_bytes(process: psutil.Process) -> int:
    """The most that it had in memory since `forget_peak`."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def forget_peak(process: psutil.Process) -> None:
    """Count anew from here."""
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def measure(server: Server, name: str, seconds: float) -> Row:
    """One attack, with a tenant of its own on each side."""
    gateway = server.child("gateway")
    attacker, person = server.tenant(f"attacker-{name}"), server.tenant(f"person-{name}")
    quiet = probe(server, person, lambda count: count < QUIET_REQUESTS)
    start = gateway.memory_info().rss
    forget_peak(gateway)
    command = [sys.executable, "-m", "tests.system.attacks.bodies", server.url, attacker, name, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacking:
        during = probe(server, person, lambda count: attacking.poll() is None or count < 1)
        answers = json.loads(attacking.communicate()[0] or "{}")
    peak = peak_bytes(gateway)
    until = time.monotonic() + CALMS_S
    while gateway.memory_info().rss - start > MOST_KEPT_BYTES and time.monotonic() < until:
        time.sleep(0.2)
    return Row(name, answers, quiet, during, start, peak, gateway.memory_info().rss)


def main() -> int:
    """Run them; 1 where one of them did what it should not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=NAMES, nargs="*")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        server = Server(Path(directory)).start()
        try:
            for name in options.only or NAMES:
                rows.append(row := measure(server, name, options.seconds))
                memory = f"{row.start_bytes >> 20} → {row.peak_bytes >> 20} → {row.kept_bytes >> 20} MiB"
                times = f"P99 {row.quiet.p99_ms:.0f} → {row.during.p99_ms:.0f} ms (P50 {row.during.p50_ms:.0f})"
                sys.stdout.write(f"{name}: {row.answers}; {times}; {memory}; {'; '.join(row.faults) or 'well'}\n")
                sys.stdout.flush()
        finally:
            server.stop()
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 1 if any(row.faults for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
