"""Whole workers: `python -m worker` processes at one store of their own."""

import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from fairlane.cli.embedded_store import EmbeddedStore
from tests.support.ports import free_port

START_LIMIT_S = 90.0
STOP_LIMIT_S = 30.0


@dataclass
class Process:
    """One worker process and what it logs."""

    child: subprocess.Popen[str]
    metrics_port: int
    log: list[str] = field(default_factory=list)
    _lines: "queue.Queue[str | None]" = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        assert self.child.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self.child.stderr,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def is_alive(self) -> bool:
        return self.child.poll() is None

    def logged(self, text: str) -> str:
        """The next line that holds `text`."""
        while True:
            line = self._lines.get(timeout=START_LIMIT_S)
            assert line is not None, f"the worker ended: {''.join(self.log)[-2000:]}"
            if text in line:
                return line

    def send(self, number: signal.Signals) -> None:
        self.child.send_signal(number)

    def ended(self) -> int:
        """Its exit status; its log is whole by then."""
        status = self.child.wait(STOP_LIMIT_S)
        self._reader.join(STOP_LIMIT_S)
        return status

    def _read(self, source: IO[str]) -> None:
        for line in source:
            self.log.append(line)
            self._lines.put(line)
        self._lines.put(None)


@dataclass
class Fleet:
    """A store, a model, and as many workers as a test asks for."""

    store: EmbeddedStore
    model: Path
    queue: str
    lease_s: float
    reference: list[int] = field(default_factory=list)
    """What the tests' long job generates undisturbed, once one of them has asked."""
    processes: list[Process] = field(default_factory=list)

    def start(self, **settings: str) -> Process:
        """Start one worker more; `settings` by `FAIRLANE_*` name without the prefix."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRLANE_", "OTEL_"))}
        port = free_port()
        mine = {
            "REDIS_URL": self.store.url,
            "MODEL": str(self.model),
            "LEASE_S": str(self.lease_s),
            "WORKER__KV_MEMORY": "4MiB",
            "WORKER__HOST_KV_MEMORY": "1MiB",
            "WORKER__DTYPE": "float32",
            "WORKER__DEVICE": "cpu",
            "WORKER__THREADS": "1",
            "WORKER__METRICS_PORT": str(port),
            **settings,
        }
        process = Process(
            subprocess.Popen(
                [sys.executable, "-m", "fairlane.worker"],
                env={**clean, **{f"FAIRLANE_{name}": value for name, value in mine.items()}},
                cwd=self.model,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            ),
            port,
        )
        self.processes.append(process)
        return process

    def alive(self, count: int) -> list[Process]:
        """At least so many workers that serve; what is missing is started, all at once."""
        living = [process for process in self.processes if process.is_alive]
        fresh = [self.start() for _ in range(count - len(living))]
        for process in fresh:
            process.logged("serves")
        return living + fresh

    def of(self, worker_id: str) -> Process:
        """The process behind a worker's name."""
        return next(process for process in self.processes if f"-{process.pid}-" in worker_id)

    def close(self) -> None:
        for process in self.processes:
            if process.is_alive:
                process.send(signal.SIGKILL)
                process.child.wait()
            assert process.child.stderr is not None
            process.child.stderr.close()
        self.store.stop()
