"""The control of a flood on the gateway: processes that spend the same processor time and talk to no one.

On a small machine a flood slows others down by the processor time that it takes, whatever the gateway does. While a
flood runs, `Meter` records the time that the attacker and the gateway use; `replay` then spends as much in the same
course, at the same priorities, while the other tenant's requests are measured once more. What a flood costs beyond its
control is what the gateway is to blame for.

python -m tests.system.attacks.controls NICE < JSON

Spend, by each time since the start, as much processor time: `[[elapsed_s, cpu_s], …]`.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import psutil

SAMPLE_S = 0.05
LOWEST = 19
"""The priority of attackers."""
Course = list[tuple[float, float]]
"""(seconds since the start, processor seconds used until then)"""


def cpu_s(process: psutil.Process) -> float:
    """The processor time that a process has used; 0 of one that has ended."""
    try:
        used = process.cpu_times()
    except psutil.Error:
        return 0.0
    return used.user + used.system


@dataclass
class Meter:
    """What attacker and gateway use while a flood runs."""

    attacker: psutil.Process
    gateway: psutil.Process
    quiet_share: float
    """Of a processor, that the gateway uses for the other tenant alone."""
    attacker_course: Course = field(default_factory=list)
    gateway_course: Course = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record until the block ends."""
        ended = threading.Event()
        recording = threading.Thread(target=self._record, args=(ended,))
        recording.start()
        try:
            yield
        finally:
            ended.set()
            recording.join()

    def _record(self, ended: threading.Event) -> None:
        began_s, before_s = time.monotonic(), cpu_s(self.gateway)
        while not ended.wait(SAMPLE_S):
            elapsed_s = time.monotonic() - began_s
            more_s = cpu_s(self.gateway) - before_s - self.quiet_share * elapsed_s
            self.gateway_course.append((elapsed_s, max(0.0, more_s)))
            if used_s := cpu_s(self.attacker):
                self.attacker_course.append((elapsed_s, used_s))


@contextmanager
def replay(meter: Meter) -> Iterator[Callable[[], bool]]:
    """Spend the same again. Yields a function that tells whether it goes on."""
    command = [sys.executable, "-m", "tests.system.attacks.controls"]
    with ExitStack() as stack:
        spending = []
        for priority, course in ((LOWEST, meter.attacker_course), (0, meter.gateway_course)):
            process = subprocess.Popen([*command, str(priority)], stdin=subprocess.PIPE, text=True)
            stack.enter_context(process)
            assert process.stdin is not None
            process.stdin.write(json.dumps(course))
            process.stdin.close()
            spending.append(process)
        yield lambda: any(process.poll() is None for process in spending)


def spend(course: Sequence[tuple[float, float]]) -> None:
    """Use as much processor time by each of these times, or as much of it as there is."""
    began_s, own_s = time.monotonic(), time.process_time()
    for elapsed_s, used_s in course:
        while time.process_time() - own_s < used_s and time.monotonic() - began_s < elapsed_s:
            sum(range(1_000))
        time.sleep(max(0.0, began_s + elapsed_s - time.monotonic()))


if __name__ == "__main__":
    os.nice(int(sys.argv[1]))
    spend(json.load(sys.stdin))
