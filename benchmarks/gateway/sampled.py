"""A gateway that notes where its processor time goes: `benchmarks.gateway.profile` starts it and reads what it found.

python -m benchmarks.gateway.sampled OUT [options of a gateway]: from SIGUSR1 on each EVERY_S of processor time counts
for the function that runs, and for the function of ours that it runs for; SIGUSR2 ends that and writes the counts to
OUT. The kernel looks at its own ticks only, some hundred a second. What happens between two functions of Python, in the
kernel, in C and in other threads, counts for the next one.
"""

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

from fairlane.gateway.__main__ import main

EVERY_S = 0.001
OURS = "fairlane"
HERE = Path(__file__).parents[2]


class Samples:
    """Counts of one spell."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._running: Counter[str] = Counter()
        self._ours: Counter[str] = Counter()

    def listen(self) -> None:
        """Wait for the signals."""
        signal.signal(signal.SIGUSR1, lambda *_: signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S))
        signal.signal(signal.SIGUSR2, lambda *_: self._write())
        signal.signal(signal.SIGPROF, self._note)

    def _note(self, _: int, frame: FrameType | None) -> None:
        self._running[_package(frame)] += 1
        while frame is not None and _package(frame) != OURS:
            frame = frame.f_back
        self._ours[_place(frame)] += 1

    def _write(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        self._out.write_text(json.dumps({"running": self._running, "ours": self._ours}))


def _package(frame: FrameType | None) -> str:
    """Whose code it is; what was made while it ran (a dataclass's own methods) is nobody's."""
    if frame is None or frame.f_code.co_filename.startswith("<"):
        return ""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _place(frame: FrameType | None) -> str:
    """A file of ours; empty: none is at work."""
    return str(Path(frame.f_code.co_filename).relative_to(HERE)) if frame is not None else ""


if __name__ == "__main__":
    Samples(Path(sys.argv.pop(1))).listen()
    raise SystemExit(main())
