"""Log lines: one object or one line for each record, whatever a caller's words in it try."""

import json
import logging
import sys

import pytest

from fairlane.common.log_lines import JsonLines, TextLines, printable

HOSTILE = "acme\n2026-01-01 00:00:00,000 INFO gateway[1] all is well\r\x1b[2J\u202egnp.exe\x00"


def record(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("fairlane.test", logging.WARNING, "file.py", 1, message, arguments, None)


def test_a_plain_message_stays_as_it_is() -> None:
    assert printable("tenant=acme größe 5 µs") == "tenant=acme größe 5 µs"


def test_what_cannot_be_printed_is_escaped_and_no_further_line_passes_for_a_record() -> None:
    first, second = TextLines("%(levelname)s %(message)s").format(record("tenant %s", HOSTILE)).split("\n")

    assert first == "WARNING tenant acme"
    assert second == r"    2026-01-01 00:00:00,000 INFO gateway[1] all is well\r\x1b[2J\u202egnp.exe\x00"


def test_an_object_of_json_is_one_line_of_ascii_and_says_the_same() -> None:
    line = JsonLines("worker", 7, lambda _: {"trace_id": "ab", "request_id": None}).format(record("tenant %s", HOSTILE))

    assert line.isascii()
    assert line.isprintable()
    told = json.loads(line)
    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "warning",
        "logger": "fairlane.test",
        "service": "worker",
        "pid": 7,
        "message": f"tenant {HOSTILE}",
        "trace_id": "ab",
    }


@pytest.mark.parametrize("formatter", [TextLines("%(message)s"), JsonLines("worker", 7)])
def test_a_traceback_belongs_to_its_record(formatter: logging.Formatter) -> None:
    failed = record("it failed")
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        failed.exc_info = sys.exc_info()

    first, *others = formatter.format(failed).split("\n")

    assert "it failed" in first
    assert all(line.startswith("    ") for line in others)
