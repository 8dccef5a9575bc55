"""The log: whole lines in order, written together where a loop runs, and in logging's own form."""

import asyncio
import io
import logging
import subprocess
import sys
import threading

import pytest

from fairlane.gateway.observability.logging import FORMAT, Lines, Stamped

pytestmark = pytest.mark.anyio


def made() -> tuple[logging.Logger, io.StringIO]:
    """A logger of its own, and what it writes."""
    lines, written = Lines(), io.StringIO()
    lines.setStream(written)
    logger = logging.Logger("of this test")
    logger.addHandler(lines)
    return logger, written


async def test_what_a_turn_logs_is_written_at_its_end() -> None:
    logger, written = made()

    logger.info("one %d", 1)
    logger.info("two")
    assert written.getvalue() == ""
    await asyncio.sleep(0)

    assert written.getvalue() == "one 1\ntwo\n"


async def test_another_thread_writes_at_once_and_in_order() -> None:
    logger, written = made()
    logger.info("one")

    thread = threading.Thread(target=logger.info, args=("two",))
    thread.start()
    thread.join()

    assert written.getvalue() == "one\ntwo\n"
    await asyncio.sleep(0)
    assert written.getvalue() == "one\ntwo\n"


def test_without_a_loop_a_line_is_written_at_once() -> None:
    logger, written = made()

    logger.warning("one")

    assert written.getvalue() == "one\n"


@pytest.mark.parametrize("created", [0.0, 1_763_740_000.25, 1_763_740_000.999])
def test_a_line_is_stamped_as_logging_does(created: float) -> None:
    stamped, own = (kind(FORMAT.format("gateway", 7)) for kind in (Stamped, logging.Formatter))
    record = logging.makeLogRecord({"created": created, "msecs": created % 1 * 1e3, "msg": "x", "levelname": "INFO"})

    assert [stamped.format(record), stamped.format(record)] == [own.format(record)] * 2


class Broken(io.StringIO):
    """A pipe that nobody reads any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


async def test_a_log_that_cannot_be_written_is_not_tried_again() -> None:
    logger, written = made()
    troubles: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
    handler = next(one for one in logger.handlers if isinstance(one, Lines) and one.stream is written)
    handler.setStream(Broken())

    logger.info("one")
    await asyncio.sleep(0)
    handler.setStream(written)
    logger.info("two")
    await asyncio.sleep(0)

    assert troubles == []
    assert written.getvalue() == "two\n"


async def test_arguments_that_do_not_fit_are_no_fault_of_who_logs(capsys: pytest.CaptureFixture[str]) -> None:
    logger, written = made()

    logger.info("%d", "x")
    logger.info("two")
    await asyncio.sleep(0)

    assert written.getvalue() == "two\n"
    assert "--- Logging error ---" in capsys.readouterr().err


BROKEN_FORM = """
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.multipart import FormReader
from fairlane.gateway.observability.logging import start_logging
start_logging("debug")
try:
    FormReader(b"multipart/form-data; boundary=b", max_file_bytes=9).push(b"secret")
except ApiError:
    print("refused")
"""


@pytest.mark.slow
def test_bytes_of_a_form_that_is_none_are_not_logged() -> None:
    done = subprocess.run([sys.executable, "-c", BROKEN_FORM], capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == ("refused\n", "")
