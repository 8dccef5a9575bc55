"""The form of log lines, of gateway and worker alike: text for people, or an object of JSON in each line.

Whatever a caller brought into a message, a line stays a line: what cannot be printed (control characters, marks that
turn the direction of writing) is escaped, and further lines of a message are indented: none passes for a record.
"""

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]
Facts = Mapping[str, str | int | float | None]
_INDENT = "\n    "


def printable(message: str) -> str:
    """The message with what cannot be printed escaped, its further lines indented."""
    if message.isprintable():
        return message
    return _INDENT.join(map(_escaped, message.split("\n")))


def _escaped(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)


_GIVEN = "facts"


def about(request_id: str, traceparent: str) -> Mapping[str, Facts]:
    """What a record about one request is given as its `extra`; either may be empty."""
    return {_GIVEN: {"request_id": request_id or None, "trace_id": traceparent[3:35] or None}}


def given_facts(record: logging.LogRecord) -> Facts:
    """What a record was given so; nothing where it is about no request alone."""
    given: Facts = getattr(record, _GIVEN, {})
    return given


class TextLines(logging.Formatter):
    """As logging's own, printable."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, service and pid, message, and what else is known of its context."""

    def __init__(self, service: str, pid: int, facts: Callable[[logging.LogRecord], Facts] = given_facts) -> None:
        """`facts`: of the record's context, such as trace and request ids; those that are None are left out."""
        super().__init__()
        self._service = {"service": service, "pid": pid}
        self._facts = facts

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._service,
            "message": record.getMessage(),
        }
        told |= {name: value for name, value in self._facts(record).items() if value is not None}
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)  # in ASCII alone


def quiet_libraries() -> None:
    """What libraries warn of is logged like all else; clients of HTTP say nothing of each request."""
    logging.captureWarnings(True)
    for library in ("httpx", "httpcore"):
        logging.getLogger(library).setLevel(logging.WARNING)
