"""What the door says: guaranteed, best effort or refused, and why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.scheduler.admission.decide import Admitted, Refusal, assess
from fairlane.scheduler.admission.open_requests import OpenRequests, Request
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import WorkerStatus
from tests.support.scheduler.planner_world import LATENCY, THROUGHPUT

STEP_MS = 20.0
BESIDE_DECODES = 0.8
"""Part of a step of 100 ms, the pace of the latency lane, that decodes of 20 ms leave to prompts."""


def worker(
    *,
    blocks: int = 100,
    host_slots: int = 0,
    slots: int = 8,
    token_ms: float = 1.0,
    learnt: bool = True,
    draining: bool = False,
) -> WorkerStatus:
    """Steps of 20 ms whatever they hold, and a millisecond for each token of a prompt."""
    return WorkerStatus(
        worker_id="worker",
        model="model",
        queue="model@0",
        card_sha256="0",
        started_at_ms=0.0,
        draining=draining,
        block_size=16,
        blocks_total=blocks,
        host_slots_total=host_slots,
        max_sequences=slots,
        step_ms=STEP_MS if learnt else 0.0,
        step_weights=(STEP_MS, 0.0, token_ms, 0.0, 0.0) if learnt else (),
    )


def request(
    *,
    lane: LaneName = LATENCY,
    prompt: int = 100,
    output: int = 50,
    stated: bool = True,
    deadline_ms: float | None = None,
    ttft_ms: float | None = None,
    exact: bool = False,
    choices: int = 1,
) -> Request:
    return Request(
        lane=lane,
        prompt_tokens=prompt,
        max_tokens=output,
        max_tokens_stated=stated,
        deadline_ms=deadline_ms,
        ttft_ms=ttft_ms,
        exact=exact,
        choices=choices,
    )


class Door:
    """A door before some workers, with its own clock."""

    def __init__(self, *workers: WorkerStatus, elsewhere: dict[LaneName, int] | None = None) -> None:
        """It knows of so many requests that another door has let in."""
        self.workers = workers
        self.known = OpenRequests(DEFAULT_LANES)
        self.now_ms = 0.0
        self.entered = 0
        if elsewhere is not None:
            other = OpenRequests(DEFAULT_LANES)
            other.look(workers, 0.0)
            for lane, count in elsewhere.items():
                for number in range(count):
                    asked = request(lane=lane, prompt=512, output=128, ttft_ms=1e6)
                    other.enter(f"{lane}{number}", asked, guaranteed=True, now_ms=0.0)
            self.known.receive_reports([(other.report(0.0), 0)], {}, 0.0)

    def say(self, asked: Request) -> Admitted | Refusal:
        """Its word, without letting anybody in."""
        return assess(asked, workers=self.workers, open_requests=self.known, now_ms=self.now_ms)

    def ask(self, asked: Request, times: int = 1) -> list[Admitted | Refusal]:
        """Its word on each of so many, of which those that it admits are let in."""
        answers = []
        for _ in range(times):
            answer = self.say(asked)
            answers.append(answer)
            if isinstance(answer, Admitted):
                self.entered += 1
                self.known.enter(f"r{self.entered}", asked, guaranteed=answer.guaranteed, now_ms=self.now_ms)
            elif answer.retry_after_ms is not None:
                self.known.refuse(asked, self.now_ms)
        return answers


def admitted(answer: Admitted | Refusal) -> Admitted:
    assert isinstance(answer, Admitted)
    return answer


def refused(answer: Admitted | Refusal) -> Refusal:
    assert isinstance(answer, Refusal)
    return answer


def guarantees(answers: list[Admitted | Refusal]) -> int:
    return sum(isinstance(answer, Admitted) and answer.guaranteed for answer in answers)


def test_without_a_deadline_a_request_is_best_effort() -> None:
    assert not admitted(Door(worker()).say(request())).guaranteed


@pytest.mark.parametrize("workers", [(), (worker(draining=True),)])
def test_without_a_serving_worker_it_is_refused_for_now(workers: tuple[WorkerStatus, ...]) -> None:
    refusal = refused(Door(*workers).say(request()))

    assert refusal.code == "no_worker"
    assert refusal.retry_after_ms


def test_what_no_worker_could_ever_hold_is_refused_for_good_with_the_limit() -> None:
    door = Door(worker(blocks=10), worker(blocks=20))

    assert door.say(request(prompt=300, output=21)) == Refusal("exceeds_kv", None, 320)
    admitted(door.say(request(prompt=300, output=20)))


def test_an_unstated_max_tokens_does_not_exceed_anything() -> None:
    admitted(Door(worker(blocks=20)).say(request(prompt=300, output=8_000, stated=False)))


def test_before_anything_was_measured_nothing_is_refused_and_nothing_promised() -> None:
    answer = Door(worker(learnt=False)).say(request(deadline_ms=1.0))

    assert answer == Admitted(guaranteed=False, expected_ttft_ms=None)


def test_what_was_let_in_before_anything_was_measured_counts_afterwards() -> None:
    door, idle = Door(worker(learnt=False)), Door(worker())
    door.ask(request(), times=20)

    door.workers = (worker(),)

    wait_ms, idle_ms = (admitted(each.say(request())).expected_ttft_ms for each in (door, idle))
    assert wait_ms is not None
    assert idle_ms is not None
    assert wait_ms > 10 * idle_ms


def test_a_deadline_with_room_to_spare_is_guaranteed() -> None:
    assert admitted(Door(worker()).say(request(deadline_ms=5_000.0))).guaranteed


def test_several_choices_are_guaranteed_only_while_a_worker_has_room_for_all_at_once() -> None:
    """A full worker frees a row at a time, and others take it."""
    door = Door(worker(slots=2), worker(slots=2))
    pair = request(lane=THROUGHPUT, choices=2, ttft_ms=60_000.0)
    assert admitted(door.say(pair)).guaranteed
    door.ask(request(ttft_ms=2_000.0))

    assert not admitted(door.say(pair)).guaranteed
    assert admitted(door.say(request(lane=THROUGHPUT, ttft_ms=60_000.0))).guaranteed


def test_a_deadline_with_little_room_is_best_effort() -> None:
    assert not admitted(Door(worker()).say(request(deadline_ms=1_150.0))).guaranteed


def test_a_deadline_below_the_output_pace_is_refused_for_good() -> None:
    refusal = refused(Door(worker()).say(request(prompt=100, output=50, deadline_ms=900.0)))

    assert (refusal.code, refusal.retry_after_ms) == ("deadline_unattainable", None)


def test_of_an_unstated_length_only_the_first_token_is_tested_and_nothing_promised() -> None:
    answer = Door(worker(blocks=1_000)).say(request(output=4_000, stated=False, deadline_ms=900.0))

    assert not admitted(answer).guaranteed


def test_a_first_token_deadline_below_its_own_prefill_is_refused_for_good() -> None:
    refusal = refused(Door(worker()).say(request(prompt=1_000, ttft_ms=500.0)))

    assert (refusal.code, refusal.retry_after_ms, refusal.limit) == ("deadline_unattainable", None, 1_020)


def test_what_only_others_delay_may_come_back_when_they_are_done() -> None:
    door = Door(worker(), elsewhere={LATENCY: 4})

    refusal = refused(door.say(request(ttft_ms=1_000.0)))

    assert refusal.code == "deadline_unattainable"
    assert refusal.retry_after_ms is not None
    assert refusal.retry_after_ms > 1_000.0


def test_more_workers_make_the_wait_shorter() -> None:
    doors = [Door(*[worker()] * count, elsewhere={LATENCY: 12}) for count in (1, 2, 4)]
    waits = [admitted(door.say(request())).expected_ttft_ms for door in doors]

    assert waits == sorted(waits, key=lambda wait: -(wait or 0.0))
    assert waits[0] != waits[2]


def test_workers_that_drain_promise_nothing() -> None:
    alone, beside = Door(worker()), Door(worker(), *[worker(draining=True)] * 9)
    asked = request(ttft_ms=6_000.0)

    assert guarantees(beside.ask(asked, times=100)) == guarantees(alone.ask(asked, times=100)) > 0


def test_workers_that_have_not_learnt_their_costs_count_as_the_others() -> None:
    known, fresh = Door(*[worker()] * 10), Door(worker(), *[worker(learnt=False)] * 9)
    asked = request(ttft_ms=3_000.0)

    assert fresh.ask(asked, times=100) == known.ask(asked, times=100)


def test_while_there_is_room_for_all_only_prompts_stand_before_a_prompt() -> None:
    door = Door(worker(blocks=1_000))
    door.ask(request(output=1_000), times=3)

    assert admitted(door.say(request())).expected_ttft_ms == pytest.approx(4 * 100 / BESIDE_DECODES + STEP_MS)


def test_lower_lanes_do_not_stand_in_the_way() -> None:
    door = Door(worker(), elsewhere={THROUGHPUT: 100})

    assert admitted(door.say(request(lane=LATENCY, ttft_ms=500.0))).guaranteed
    refused(door.say(request(lane=THROUGHPUT, ttft_ms=500.0)))


def test_what_other_doors_have_let_in_counts() -> None:
    alone, beside = Door(worker()), Door(worker(), elsewhere={LATENCY: 16})

    assert admitted(alone.say(request(ttft_ms=2_000.0))).guaranteed
    refused(beside.say(request(ttft_ms=2_000.0)))


def test_what_has_begun_and_what_is_over_makes_room() -> None:
    door = Door(worker(slots=1))
    door.ask(request())
    waits = [admitted(door.say(request())).expected_ttft_ms]

    door.known.produced("r1", 25, 500.0)
    waits.append(admitted(door.say(request())).expected_ttft_ms)
    door.known.leave("r1", finished=True)
    waits.append(admitted(door.say(request())).expected_ttft_ms)

    assert waits == sorted(waits, key=lambda wait: -(wait or 0.0))
    assert waits[2] == pytest.approx(100 + STEP_MS)


def test_a_guarantee_is_not_broken_by_a_later_one_with_an_earlier_deadline() -> None:
    door, patient = Door(worker(slots=1)), request(ttft_ms=6_000.0)
    assert guarantees(door.ask(patient, times=20)) > 1

    assert guarantees(door.ask(request(ttft_ms=2_000.0))) == 0


def test_a_lower_lanes_promise_that_a_flood_makes_late_keeps_nobody_from_being_promised_anything() -> None:
    door = Door(worker())
    assert guarantees(door.ask(request(lane=THROUGHPUT, ttft_ms=4_000.0))) == 1
    door.ask(request(), times=100)

    assert admitted(door.say(request(ttft_ms=3_000.0))).guaranteed


def test_dated_work_of_a_lower_lane_books_only_what_the_lane_above_leaves() -> None:
    quiet, busy = Door(worker(slots=2)), Door(worker(slots=2))
    busy.ask(request(output=100), times=20)
    batch = request(lane=THROUGHPUT, deadline_ms=60_000.0)

    assert guarantees(quiet.ask(batch, times=50)) > guarantees(busy.ask(batch, times=50))


def test_shorter_answers_than_stated_let_more_in() -> None:
    def kept(learnt: int) -> int:
        door = Door(worker(slots=1))
        for number in range(learnt):
            door.known.enter(f"old{number}", request(), guaranteed=False, now_ms=0.0)
            door.known.produced(f"old{number}", 5, 0.0)
            door.known.leave(f"old{number}", finished=True)
        return guarantees(door.ask(request(ttft_ms=6_000.0), times=30))

    assert kept(learnt=20) > kept(learnt=0) > 0


dated = st.builds(
    request,
    lane=st.sampled_from(LaneName),
    prompt=st.integers(1, 400),
    output=st.integers(1, 100),
    ttft_ms=st.none() | st.floats(1.0, 20_000.0),
    deadline_ms=st.none() | st.floats(1.0, 60_000.0),
)


@given(asked=dated, before=st.lists(dated, max_size=12), one_more=dated)
def test_one_more_request_before_never_turns_no_into_a_guarantee(
    asked: Request, before: list[Request], one_more: Request
) -> None:
    """Of its own lane and those above: what is promised below, and late anyway, refuses nothing."""
    fewer, more = Door(worker()), Door(worker())
    for door, others in ((fewer, before), (more, [*before, one_more])):
        door.say(asked)
        for number, other in enumerate(one for one in others if one.lane in (LATENCY, asked.lane)):
            door.known.enter(f"o{number}", other, guaranteed=True, now_ms=0.0)

    if guarantees([more.say(asked)]):
        assert guarantees([fewer.say(asked)])


@given(asked=st.lists(dated.filter(lambda one: one.lane is LATENCY), min_size=1, max_size=40))
def test_no_more_is_guaranteed_than_can_be_done_before_each_deadline(asked: list[Request]) -> None:
    """One sequence at a time: whatever is due before another must be over, but for the one that runs."""
    door = Door(worker(slots=1))
    kept = [one for one in asked if guarantees(door.ask(one))]

    for last in kept:
        before = [one for one in kept if one is not last and due_ms(one) < due_ms(last)]
        work_ms = sum(one.prompt_tokens + STEP_MS * one.max_tokens for one in before)
        longest_ms = max((STEP_MS * one.max_tokens for one in kept), default=0.0)
        assert work_ms + last.prompt_tokens <= due_ms(last) + longest_ms


def due_ms(asked: Request) -> float:
    return min(ms for ms in (asked.ttft_ms, asked.deadline_ms) if ms is not None)


@given(before=st.lists(dated, max_size=40), prompt=st.integers(1, 400))
def test_without_a_deadline_nothing_is_ever_refused_for_the_load(before: list[Request], prompt: int) -> None:
    door = Door(worker(slots=1), elsewhere={LATENCY: 20, THROUGHPUT: 20})
    for one in before:
        door.ask(one)

    assert not admitted(door.say(request(prompt=prompt))).guaranteed


def test_of_exact_work_no_more_is_promised_than_the_host_could_take() -> None:
    """160 tokens each at their longest: the device holds 10 of them, a host pool of 30 blocks 3."""
    promised = {}
    for exact in (False, True):
        door = Door(worker(host_slots=30, slots=64, token_ms=0.1))
        asked = request(prompt=100, output=60, ttft_ms=400.0, exact=exact)
        promised[exact] = guarantees(door.ask(asked, times=12))

    assert promised[False] >= 10
    assert 1 <= promised[True] <= 3


@pytest.mark.parametrize("host_slots", [0, 5])
def test_exact_work_that_the_host_never_holds_may_fill_half_of_the_device(host_slots: int) -> None:
    door = Door(worker(host_slots=host_slots, slots=64, token_ms=0.1))

    promised = guarantees(door.ask(request(prompt=100, output=60, ttft_ms=400.0, exact=True), times=12))

    assert 1 <= promised <= 5
