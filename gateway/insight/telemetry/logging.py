"""Cheap logging: one line for each request, and one write for all lines of an event loop iteration."""

import asyncio
import logging
import os
import time
from contextlib import suppress
from typing import TextIO

from fairlane.common.log_lines import Facts, JsonLines, LogFormat, printable, quiet_libraries
from fairlane.gateway.insight.telemetry.context import CARRIED

FORMAT = "%(asctime)s %(levelname)s {}[{}] %(message)s"


def start_logging(level: str, name: str = "gateway", form: LogFormat = "text") -> None:
    """Configure logging: one line per record on stderr. Records must not contain content or keys."""
    logging._srcfile = None  # skips the caller lookup, which costs as much as everything else
    logging.logThreads = logging.logMultiprocessing = False
    logging.logProcesses = False  # avoids a system call: the format has the pid already
    lines = Lines()
    lines.setFormatter(
        JsonLines(name, os.getpid(), facts) if form == "json" else Stamped(FORMAT.format(name, os.getpid()))
    )
    logging.basicConfig(level=level.upper(), handlers=[lines])
    quiet_libraries()
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it logs the bytes of invalid forms


def facts(record: logging.LogRecord) -> Facts:
    """Return the trace and request ids of a record; for a request's own line, also its figures."""
    carried = CARRIED.get()
    fields: dict[str, str | int | float | None] = {
        "trace_id": carried.traceparent[3:35] or None,
        "span_id": carried.traceparent[36:52] or None,
        "request_id": carried.request_id or None,
    }
    context = getattr(record, "context", None)
    return fields if context is None else fields | context.facts()


class Lines(logging.StreamHandler[TextIO]):
    """Buffers an event loop iteration's lines and writes them at its end. Other threads write at once."""

    def __init__(self) -> None:
        super().__init__()
        self._unwritten: list[str] = []

    def handle(self, record: logging.LogRecord) -> bool:
        """Handle a record without logging's lock: appending to a list needs none."""
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Buffer one line. Formatting errors are reported on stderr and never raised to the caller."""
        try:
            self._unwritten.append(self.format(record) + self.terminator)
        except Exception:  # noqa: BLE001 - whatever its arguments do when they are made text
            self.handleError(record)
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
        else:
            if len(self._unwritten) == 1:
                loop.call_soon(self.flush)

    def flush(self) -> None:
        self.acquire()
        try:
            lines, self._unwritten = self._unwritten, []
            if lines:
                with suppress(OSError, ValueError):  # a full disk, a broken pipe, a closed stream
                    self.stream.write("".join(lines))
                    self.stream.flush()
        finally:
            self.release()


class Stamped(logging.Formatter):
    """Formats the time once per second, and plain records in one step."""

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self._line = line.replace("%(message)s", "%s").replace("%(levelname)s", "%s").replace("%(asctime)s", "%s")
        self._second = -1
        self._called = ""

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info or record.exc_text or record.stack_info:
            return printable(super().format(record))
        return self._line % (self.formatTime(record), record.levelname, printable(record.getMessage()))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's own name
        second = int(record.created)
        if second != self._second:
            self._called = time.strftime(self.default_time_format, time.localtime(second))
            self._second = second
        return f"{self._called},{int(record.msecs):03d}"
