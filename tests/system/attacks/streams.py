"""What another tenant's streams and the worker's memory notice of a flood of grammars."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from fairlane.scheduler.protocol.grammar_limits import KEPT_BYTES
from tests.support.system.harness import MODEL, Server
from tests.system.attacks.floods import CONTROL
from tests.system.attacks.grammars import GRAMMARS
from tests.system.attacks.measured import LOOP_MORE_MS, LOOP_TOKEN_SHARE, forget_peak, peak_bytes
from tests.system.attacks.rows import Row
from tests.system.attacks.target import bearer

QUIET_STREAMS = 20
TOKENS = 24
MOST_MORE_BYTES = 2 * KEPT_BYTES
"""Compiled grammars that a worker keeps, and as many again of jobs that run."""
KIND = "grammars"
EXPECTED = (
    f"all 200; P99 of the first token and of the time per token ≤ control's P99 + {LOOP_MORE_MS:.0f} ms + "
    f"{LOOP_TOKEN_SHARE:.0%} of a token's time; the worker ≤ {MOST_MORE_BYTES >> 20} MiB more than before"
)


@dataclass(slots=True)
class Streams:
    """One tenant's streams, one after the other."""

    first_ms: list[float] = field(default_factory=list)
    between_ms: list[float] = field(default_factory=list)
    """From one token of a stream to the next."""
    faults: list[str] = field(default_factory=list)

    def send(self, client: httpx.Client, fields: Mapping[str, Any]) -> None:
        """One more."""
        body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": TOKENS, "stream": True, **fields}
        began = last = time.perf_counter()
        count = 0
        with client.stream("POST", "/v1/completions", json=body) as answer:
            if not answer.is_success:
                self.faults.append(str(answer.status_code))
                return
            for line in answer.iter_lines():
                if line.startswith('data: {"error"'):
                    self.faults.append("an error in a stream")
                if not line.startswith("data: {") or not json.loads(line[6:]).get("choices"):
                    continue
                now = time.perf_counter()
                (self.between_ms if count else self.first_ms).append((now - last if count else now - began) * 1e3)
                count, last = count + 1, now


def percentile(times: list[float], share: float) -> float:
    """The time that this share of them does not exceed; 0.0 of none."""
    return sorted(times)[int(share * (len(times) - 1))] if times else 0.0


def _streams(server: Server, key: str, fields: Iterator[Any], goes_on: Callable[[int], bool]) -> Streams:
    found = Streams()
    with httpx.Client(base_url=server.url, headers=bearer(key), timeout=120.0) as client:
        while goes_on(len(found.first_ms) + len(found.faults)):
            found.send(client, next(fields))
    return found


def measure(server: Server, name: str, seconds: float) -> Row:
    """One flood, with tenants of its own on each side."""
    flood, worker = GRAMMARS[name], server.child("worker")
    attackers = [server.tenant(f"attacker-{number}-{name}") for number in range(flood.tenants)]
    person, fields = server.tenant(f"person-{name}"), flood.victim()

    def flooded(what: str) -> tuple[Streams, dict[str, int]]:
        command = [sys.executable, "-m", "tests.system.attacks.floods", server.url, what, str(seconds), *attackers]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacking:
            found = _streams(server, person, fields, lambda count: attacking.poll() is None or count < 1)
            return found, json.loads(attacking.communicate()[0] or "{}")

    quiet = _streams(server, person, fields, lambda count: count < QUIET_STREAMS)
    start_bytes = worker.memory_info().rss
    forget_peak(worker)
    during, answers = flooded(name)
    memory = start_bytes, peak_bytes(worker)
    control, _ = flooded(name + CONTROL)
    return _row(name, answers, (quiet, during, control), memory)


def _row(
    name: str, answers: Mapping[str, int], measured: tuple[Streams, Streams, Streams], memory: tuple[int, int]
) -> Row:
    """`measured`: quiet, while attacked, and in the control."""
    quiet, during, control = measured
    more_ms = LOOP_MORE_MS + LOOP_TOKEN_SHARE * percentile(quiet.between_ms, 0.5)
    told, faults = [], [f"the other tenant: {', '.join(during.faults)}"] if during.faults else []
    for what, before, then, alone in (
        ("first token", quiet.first_ms, during.first_ms, control.first_ms),
        ("time per token", quiet.between_ms, during.between_ms, control.between_ms),
    ):
        p50s, p99s = ([percentile(times, share) for times in (before, then, alone)] for share in (0.5, 0.99))
        told.append(
            f"{what}: P99 {p99s[0]:.0f} → {p99s[1]:.0f} ms of {len(then)} (P50 {p50s[0]:.0f} → {p50s[1]:.0f}), "
            f"control {p99s[2]:.0f} ms of {len(alone)} (P50 {p50s[2]:.0f})"
        )
        most_ms = max(p99s[0], p99s[2]) + more_ms
        if p99s[1] > most_ms:
            faults.append(f"P99 of the {what} over {most_ms:.0f} ms")
    if memory[1] - memory[0] > MOST_MORE_BYTES:
        faults.append("too much memory")
    told += [
        f"worker {' → '.join(str(size >> 20) for size in memory)} MiB",
        f"told: {', '.join(f'{count:,} {status}' for status, count in sorted(answers.items()))}",
    ]
    return Row(KIND, GRAMMARS[name].attacked, EXPECTED, "; ".join([*told, *faults]), not faults)
