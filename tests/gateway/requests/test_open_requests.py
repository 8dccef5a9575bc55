"""What a gateway keeps of its jobs for its next word on a deadline."""

from contextlib import suppress

from fairlane.gateway.requests.admission import Doors
from fairlane.gateway.requests.request import LiveJob
from fairlane.scheduler.admission.open_requests import Request
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import TokenDelta
from tests.scheduler.admission.test_open_requests import PROMISED, WORKERS
from tests.support.gateway.one_job import QUEUE
from tests.support.gateway.one_job import job as live
from tests.support.scheduler.planner_world import LATENCY, job

ALIKE = Request(lane=LATENCY, tenant="acme", prompt_tokens=10, max_tokens=100)


def known() -> Doors:
    doors = Doors(DEFAULT_LANES, clock=lambda: 0.0)
    doors.at(QUEUE).look(WORKERS, 0.0)
    return doors


def let_in(doors: Doors, one: LiveJob) -> None:
    with doors.held(QUEUE, [one.id]):
        doors.at(QUEUE).enter(one.id, ALIKE, guaranteed=True, now_ms=0.0)
        doors.entered(one)


def test_jobs_that_told_their_end_teach_the_lengths_to_expect() -> None:
    doors = Doors(DEFAULT_LANES, clock=lambda: 0.0)
    for number in range(20):
        one = live(f"f{number}", max_output_tokens=100)
        one.message = job(one.id, LATENCY, prompt=10, max_tokens=100)
        let_in(doors, one)
        one.accept(TokenDelta(job_id=one.id, epoch=1, choice=0, first_index=0, token_ids=tuple(range(7))))
        doors.heard(one)
        one.choices[0].finish_reason = "stop"
        doors.left(one)

    assert doors.at(QUEUE).output_tokens(ALIKE) == 7
    assert doors.at("another@0").output_tokens(ALIKE) == 100


def test_a_job_that_was_never_put_leaves_no_trace() -> None:
    doors = known()

    with suppress(RuntimeError), doors.held(QUEUE, ["refused"]):
        doors.at(QUEUE).enter("refused", ALIKE, guaranteed=True, now_ms=0.0)
        raise RuntimeError

    assert doors.at(QUEUE).ledger.at(PROMISED).loads == 0


def test_a_job_that_was_put_stays_until_it_is_over() -> None:
    doors, one = known(), live("put", max_output_tokens=100)

    one.message = job(one.id, LATENCY, prompt=10, max_tokens=100)
    let_in(doors, one)
    stayed = doors.at(QUEUE).ledger.at(PROMISED).loads
    doors.left(one)

    assert (stayed, doors.at(QUEUE).ledger.at(PROMISED).loads) == (1, 0)


def test_they_are_idle_once_all_that_was_let_in_is_over() -> None:
    doors, one = known(), live("put")
    said = [doors.idle.is_set()]

    with doors.held(QUEUE, [one.id]):
        said.append(doors.idle.is_set())
        doors.entered(one)
    said.append(doors.idle.is_set())
    doors.left(one)
    said.append(doors.idle.is_set())
    with doors.held(QUEUE, ["refused"]):
        pass
    said.append(doors.idle.is_set())

    assert said == [True, False, False, True, True]
