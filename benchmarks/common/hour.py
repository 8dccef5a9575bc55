"""How a machine that others share does at this hour: where these two double, so does what the same code takes."""

import os
import statistics
import subprocess
import sys
import time

ROUNDS = 5
READS = 100_000
MEMORY_BYTES = 2**28
"""No cache holds as much."""
STRIDE = 0x5DEECE66D
"""One more than a multiple of four: with an odd increment every place comes by, in no order (Hull and Dobell, 1962)."""
TURNS = 1_000
_ECHO = "import os\nwhile os.read(0, 1): os.write(1, b'.')"


def describe() -> str:
    """Both in a few words."""
    return f"this hour {read_ns():.0f} ns to read memory at random and {wake_us():.0f} µs to wake another core"


def read_ns() -> float:
    """Nanoseconds from one read of memory at random to the next that waits for it, by Python; the median round's."""
    memory, place = bytearray(b"\1") * MEMORY_BYTES, 0
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(READS):
            place = (place * STRIDE + memory[place]) % MEMORY_BYTES
        rounds.append((time.perf_counter() - began) / READS * 1e9)
    return statistics.median(rounds)


def wake_us() -> float:
    """Microseconds until a process that sleeps on another core hears of a byte; the median round's."""
    mine = os.sched_getaffinity(0)
    with subprocess.Popen([sys.executable, "-c", _ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as echo:
        assert echo.stdin is not None  # noqa: S101 - a pipe, as asked for
        assert echo.stdout is not None  # noqa: S101 - likewise
        there, back = echo.stdin.fileno(), echo.stdout.fileno()
        os.sched_setaffinity(0, {min(mine)})
        os.sched_setaffinity(echo.pid, {max(mine)})
        try:
            _exchange(there, back)  # it has begun
            return statistics.median(_exchange(there, back) for _ in range(ROUNDS)) / 2
        finally:
            os.sched_setaffinity(0, mine)


def _exchange(there: int, back: int) -> float:
    """Microseconds of a byte's way there and back."""
    began = time.perf_counter()
    for _ in range(TURNS):
        os.write(there, b".")
        os.read(back, 1)
    return (time.perf_counter() - began) / TURNS * 1e6
