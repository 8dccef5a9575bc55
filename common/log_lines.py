"""The format of log lines: text for people, or one JSON object per line.

A caller's text cannot forge a record: non-printable characters (control characters, bidirectional marks) are escaped,
and further lines of a message are indented."""

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]
Facts = Mapping[str, str | int | float | None]
_INDENT = "\n    "


def printable(message: str) -> str:
    """Return the message with non-printable characters escaped and further lines indented."""
    if message.isprintable():
        return message
    return _INDENT.join(map(_escaped, message.split("\n")))


def _escaped(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)


_GIVEN = "facts"


def about(request_id: str, traceparent: str) -> Mapping[str, Facts]:
    """Return the logging `extra` of a record about one request; either argument may be empty."""
    return {_GIVEN: {"request_id": request_id or None, "trace_id": traceparent[3:35] or None}}


def given_facts(record: logging.LogRecord) -> Facts:
    """Return the facts that `about` attached to a record, or an empty mapping."""
    given: Facts = getattr(record, _GIVEN, {})
    return given


class TextLines(logging.Formatter):
    """The text format: logging's own, made printable."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class JsonLines(logging.Formatter):
    """The JSON format: time, level, logger, service, pid, message and context."""

    def __init__(self, service: str, pid: int, facts: Callable[[logging.LogRecord], Facts] = given_facts) -> None:
        """`facts` returns a record's context, such as trace and request ids; None values are left out."""
        super().__init__()
        self._service = {"service": service, "pid": pid}
        self._facts = facts

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._service,
            "message": record.getMessage(),
        }
        fields |= {name: value for name, value in self._facts(record).items() if value is not None}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)  # ASCII only


def quiet_libraries() -> None:
    """Route library warnings to the log and silence the HTTP client's line per request."""
    logging.captureWarnings(True)
    for library in ("httpx", "httpcore"):
        logging.getLogger(library).setLevel(logging.WARNING)
