"""What a gateway keeps of its jobs for its next word on a deadline."""

from fairlane.gateway.pipeline.admission import AllOpenRequests
from fairlane.gateway.request.live_request import LiveJob
from fairlane.scheduler.admission.open_requests import Request
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import TokenDelta
from tests.support.gateway.one_request import QUEUE
from tests.support.gateway.one_request import job as live
from tests.support.scheduler.admitted import PROMISED, WORKERS
from tests.support.scheduler.planner_world import LATENCY, job

ALIKE = Request(lane=LATENCY, tenant="acme", prompt_tokens=10, max_tokens=100)


def known() -> AllOpenRequests:
    open_requests = AllOpenRequests(DEFAULT_LANES, clock=lambda: 0.0)
    open_requests.at(QUEUE).look(WORKERS, 0.0)
    return open_requests


def let_in(open_requests: AllOpenRequests, one: LiveJob) -> None:
    open_requests.hold([one.id])
    open_requests.at(QUEUE).enter(one.id, ALIKE, guaranteed=True, now_ms=0.0)
    open_requests.entered(one)
    open_requests.release(QUEUE, [one.id])


def test_jobs_that_told_their_end_teach_the_lengths_to_expect() -> None:
    open_requests = AllOpenRequests(DEFAULT_LANES, clock=lambda: 0.0)
    for number in range(20):
        one = live(f"f{number}", max_output_tokens=100)
        one.message = job(one.id, LATENCY, prompt=10, max_tokens=100)
        let_in(open_requests, one)
        one.accept(TokenDelta(job_id=one.id, epoch=1, choice=0, first_index=0, token_ids=tuple(range(7))))
        open_requests.produced(one)
        one.choices[0].finish_reason = "stop"
        open_requests.left(one)

    assert open_requests.at(QUEUE).output_tokens(ALIKE) == 7
    assert open_requests.at("another@0").output_tokens(ALIKE) == 100


def test_a_job_that_was_never_put_leaves_no_trace() -> None:
    open_requests = known()

    open_requests.hold(["refused"])
    open_requests.at(QUEUE).enter("refused", ALIKE, guaranteed=True, now_ms=0.0)
    open_requests.release(QUEUE, ["refused"])

    assert open_requests.at(QUEUE).ledger.at(PROMISED).loads == 0


def test_a_job_that_was_put_stays_until_it_is_over() -> None:
    open_requests, one = known(), live("put", max_output_tokens=100)

    one.message = job(one.id, LATENCY, prompt=10, max_tokens=100)
    let_in(open_requests, one)
    stayed = open_requests.at(QUEUE).ledger.at(PROMISED).loads
    open_requests.left(one)

    assert (stayed, open_requests.at(QUEUE).ledger.at(PROMISED).loads) == (1, 0)


def test_they_are_idle_once_all_that_was_let_in_is_over() -> None:
    open_requests, one = known(), live("put")
    said = [open_requests.are_idle]

    open_requests.hold([one.id])
    said.append(open_requests.are_idle)
    open_requests.entered(one)
    open_requests.release(QUEUE, [one.id])
    said.append(open_requests.are_idle)
    open_requests.left(one)
    said.append(open_requests.are_idle)
    open_requests.hold(["refused"])
    open_requests.release(QUEUE, ["refused"])
    said.append(open_requests.are_idle)

    assert said == [True, False, False, True, True]
