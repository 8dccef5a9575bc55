"""The log at little cost: a line for each request, and one write for all that a turn of the event loop has to say."""

import asyncio
import logging
import os
import time
from contextlib import suppress
from typing import TextIO

from fairlane.gateway.observability.context import CARRIED
from fairlane.scheduler.protocol.log_lines import Facts, JsonLines, LogFormat, printable, quiet_libraries

FORMAT = "%(asctime)s %(levelname)s {}[{}] %(message)s"
"""Of the lines of a process by that name and number."""


def start_logging(level: str, name: str = "gateway", form: LogFormat = "text") -> None:
    """One line per record on stderr, with this process's name; records never hold content or keys."""
    logging._srcfile = None  # no line of ours tells where it comes from: finding that out costs as much as all the rest
    logging.logThreads = logging.logMultiprocessing = False
    logging.logProcesses = False  # a process knows its number: to ask for it is a system call
    lines = Lines()
    lines.setFormatter(
        JsonLines(name, os.getpid(), facts) if form == "json" else Stamped(FORMAT.format(name, os.getpid()))
    )
    logging.basicConfig(level=level.upper(), handlers=[lines])
    quiet_libraries()
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it quotes the bytes that are no form


def facts(record: logging.LogRecord) -> Facts:
    """The trace and request in which a record was made; of the line that tells of a request, its figures."""
    traceparent, request_id = CARRIED.get()
    told: dict[str, str | int | float | None] = {
        "trace_id": traceparent[3:35] or None,
        "span_id": traceparent[36:52] or None,
        "request_id": request_id or None,
    }
    journal = getattr(record, "journal", None)
    return told if journal is None else told | journal.facts()


class Lines(logging.StreamHandler[TextIO]):
    """Writes what one turn of the loop logs at its end; outside of a loop, and in other threads, at once."""

    def __init__(self) -> None:
        super().__init__()
        self._unwritten: list[str] = []

    def handle(self, record: logging.LogRecord) -> bool:
        """Without the lock that logging takes around each record: adding to a list needs none."""
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """One line; a record that cannot be one is told of on stderr, and never to who logged it."""
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
        """Write all that is there. What cannot be written is lost: to log that would be to try again for ever."""
        self.acquire()
        try:
            lines, self._unwritten = self._unwritten, []
            if lines:
                with suppress(OSError, ValueError):  # a full disk, a pipe that nobody reads, a closed stream
                    self.stream.write("".join(lines))
                    self.stream.flush()
        finally:
            self.release()


class Stamped(logging.Formatter):
    """Looks up what a second is called once, and writes a plain record in one step."""

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self._line = line.replace("%(message)s", "%s").replace("%(levelname)s", "%s").replace("%(asctime)s", "%s")
        self._second = -1
        self._called = ""

    def format(self, record: logging.LogRecord) -> str:
        """As logging's own."""
        if record.exc_info or record.exc_text or record.stack_info:
            return printable(super().format(record))
        return self._line % (self.formatTime(record), record.levelname, printable(record.getMessage()))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's own name
        """As logging's own: local time, and milliseconds after a comma."""
        second = int(record.created)
        if second != self._second:
            self._called = time.strftime(self.default_time_format, time.localtime(second))
            self._second = second
        return f"{self._called},{int(record.msecs):03d}"
