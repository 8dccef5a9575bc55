"""What the worker's log says of one job: which request it was of, and nothing that it held."""

import json
import logging

import msgspec
import pytest

from fairlane.common.log_lines import JsonLines
from fairlane.scheduler.protocol.messages import Finished, Lease, Outcome
from fairlane.worker.job_log import JobLog
from fairlane.worker.leases import NO_CAPACITY
from fairlane.worker.reports import Publication, Report, WorkerLoad
from tests.support.scheduler.queues import job

TRACE_ID, PROMPT = "0af7651916cd43dd8448eb211c80319c", (77_001, 77_002)


def a_lease(job_id: str = "a") -> Lease:
    """Of a job that a request with an id and a trace is behind."""
    named = msgspec.structs.replace(
        job(job_id), prompt=PROMPT, request_id=f"req_{job_id}", traceparent=f"00-{TRACE_ID}-b7ad6b7169203331-01"
    )
    return Lease(job=named, epoch=1, arrived_ms_ago=0.0)


def ended(job_id: str, outcome: Outcome, error: str = "") -> Report:
    """A turn in which a job ends."""
    event = Finished(job_id=job_id, epoch=1, outcome=outcome, error=error)
    publications = [Publication(a_lease(job_id), (event,), ends=outcome)]
    return Report(applied=0, publications=publications, capacity=NO_CAPACITY, jobs=0, load=WorkerLoad())


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    """What was logged, as objects."""
    form = JsonLines("worker", 7)
    return [json.loads(form.format(record)) for record in caplog.records]


def test_a_job_that_fails_is_told_with_its_request_and_trace(caplog: pytest.LogCaptureFixture) -> None:
    told = JobLog()
    told.took([a_lease()])
    told.turned(ended("a", Outcome.FAILED, "It could not be computed."))

    (line,) = lines(caplog)
    assert (line["level"], line["request_id"], line["trace_id"]) == ("warning", "req_a", TRACE_ID)
    assert line["message"] == "job a failed: It could not be computed."
    assert "77001" not in json.dumps(line)


def test_a_job_that_ends_well_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    told = JobLog()
    told.took([a_lease()])
    told.turned(ended("a", Outcome.FINISHED))
    told.lost(["a"])

    assert not caplog.records


def test_a_job_that_leaves_before_its_end_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    told = JobLog()
    told.took([a_lease("a"), a_lease("b")])
    told.lost(["b"])
    told.lost(["b"])

    (line,) = lines(caplog)
    assert (line["message"], line["request_id"]) == ("job b left before its end", "req_b")


def test_a_line_of_no_job_alone_names_no_request() -> None:
    record = logging.LogRecord("worker", logging.INFO, __file__, 1, "draining", None, None)

    assert "request_id" not in json.loads(JsonLines("worker", 7).format(record))
