"""The log: whole lines in order, written together where a loop runs, and in logging's own form."""

import asyncio
import io
import json
import logging
import subprocess
import sys
import threading

import pytest

from fairlane.common.log_lines import JsonLines
from fairlane.gateway.insight.telemetry.logging import FORMAT, Lines, Stamped, facts
from tests.support.gateway.served import ASKED, CHAT, serving, settings

pytestmark = pytest.mark.anyio
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


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


EVERY_LINE = """
import asyncio, logging, warnings
from fairlane.gateway.insight.telemetry.logging import start_logging
start_logging("info", "gateway-1", "json")
logging.getLogger("uvicorn.error").info("started")
warnings.warn("old", DeprecationWarning, stacklevel=1)
async def main():
    asyncio.get_running_loop().call_exception_handler({"message": "lost"})
asyncio.run(main())
"""


@pytest.mark.slow
def test_lines_of_libraries_are_objects_too() -> None:
    command = [sys.executable, "-W", "always", "-c", EVERY_LINE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["logger"] for line in told] == ["uvicorn.error", "py.warnings", "asyncio"]
    assert {line["service"] for line in told} == {"gateway-1"}
    assert "DeprecationWarning: old" in told[1]["message"]


async def test_the_line_of_a_request_has_its_figures_and_its_trace(valkey_url: str) -> None:
    lines, written = Lines(), io.StringIO()
    lines.setStream(written)
    lines.setFormatter(JsonLines("gateway", 7, facts))
    logger = logging.getLogger("fairlane.gateway.middleware.tenant")
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    try:
        async with serving(settings(valkey_url)) as served:
            await served.tenant()
            await served.post(CHAT, ASKED, traceparent=f"00-{TRACE_ID}-b7ad6b7169203331-01", x_request_id="mine")
            await served.landed()
    finally:
        logger.removeHandler(lines)
        logger.setLevel(logging.NOTSET)

    (told,) = map(json.loads, written.getvalue().splitlines())
    expected = {"trace_id": TRACE_ID, "request_id": "mine", "tenant": "acme", "code": "ok", "status": 200}
    assert expected.items() <= told.items()
    assert told["output_tokens"] == len(served.worker.script)
    assert "Paris" not in written.getvalue()


BROKEN_FORM = """
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.multipart import FormReader
from fairlane.gateway.insight.telemetry.logging import start_logging
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
