from dataclasses import dataclass

import pytest

from scheduler.admission import Admitted, Refusal, Request, assess
from scheduler.lanes import DEFAULT_LANES, LaneName
from scheduler.messages import WorkerStatus
from tests.scheduler.planner_world import LATENCY, THROUGHPUT


@dataclass(frozen=True)
class Depth:
    queued: int


def worker(
    *,
    blocks: int = 100,
    rate: float = 1_000.0,
    step_ms: float = 20.0,
    draining: bool = False,
    running: dict[str, int] | None = None,
) -> WorkerStatus:
    return WorkerStatus(
        worker_id="worker",
        model="model",
        queue="model@0",
        card_sha256="0",
        started_at_ms=0.0,
        draining=draining,
        block_size=16,
        blocks_total=blocks,
        max_sequences=8,
        running=running or {},
        step_ms=step_ms,
        prefill_tokens_per_s=rate,
    )


def ask(
    *workers: WorkerStatus,
    lane: LaneName = LATENCY,
    prompt: int = 100,
    output: int = 50,
    stated: bool = True,
    deadline_ms: float | None = None,
    ttft_ms: float | None = None,
    queued: dict[LaneName, int] | None = None,
    queued_tokens: dict[LaneName, int] | None = None,
) -> Admitted | Refusal:
    request = Request(
        lane=lane,
        prompt_tokens=prompt,
        max_tokens=output,
        max_tokens_stated=stated,
        deadline_ms=deadline_ms,
        ttft_ms=ttft_ms,
    )
    depths = {name: Depth(count) for name, count in (queued or {}).items()}
    return assess(request, workers=workers, depths=depths, lanes=DEFAULT_LANES, queued_tokens=queued_tokens)


def admitted(answer: Admitted | Refusal) -> Admitted:
    assert isinstance(answer, Admitted)
    return answer


def refused(answer: Admitted | Refusal) -> Refusal:
    assert isinstance(answer, Refusal)
    return answer


def test_without_a_deadline_a_request_is_best_effort() -> None:
    assert not admitted(ask(worker())).guaranteed


@pytest.mark.parametrize("workers", [(), (worker(draining=True),)])
def test_without_a_serving_worker_it_is_refused_for_now(workers: tuple[WorkerStatus, ...]) -> None:
    refusal = refused(ask(*workers))

    assert refusal.code == "no_worker"
    assert refusal.retry_after_ms


def test_what_no_worker_could_ever_hold_is_refused_for_good_with_the_limit() -> None:
    assert ask(worker(blocks=10), worker(blocks=20), prompt=300, output=21) == Refusal("exceeds_kv", None, 320)


def test_the_largest_worker_decides_what_fits() -> None:
    admitted(ask(worker(blocks=10), worker(blocks=20), prompt=300, output=20))


def test_an_unstated_max_tokens_does_not_exceed_anything() -> None:
    admitted(ask(worker(blocks=20), prompt=300, output=8_000, stated=False))


def test_a_deadline_with_room_to_spare_is_guaranteed() -> None:
    assert admitted(ask(worker(), deadline_ms=5_000.0)).guaranteed


def test_a_deadline_with_little_room_is_best_effort() -> None:
    assert not admitted(ask(worker(), deadline_ms=1_150.0)).guaranteed


def test_a_deadline_below_the_output_pace_is_refused_for_good() -> None:
    refusal = refused(ask(worker(step_ms=20.0), prompt=100, output=50, deadline_ms=900.0))

    assert (refusal.code, refusal.retry_after_ms) == ("deadline_unattainable", None)


def test_of_an_unstated_length_only_the_first_token_is_tested_and_nothing_promised() -> None:
    answer = ask(worker(blocks=1_000), output=4_000, stated=False, deadline_ms=900.0)

    assert not admitted(answer).guaranteed


def test_a_first_token_deadline_below_its_own_prefill_is_refused_for_good() -> None:
    refusal = refused(ask(worker(rate=1_000.0), prompt=1_000, ttft_ms=500.0))

    assert (refusal.code, refusal.retry_after_ms, refusal.limit) == ("deadline_unattainable", None, 1_020)


def test_what_only_the_queue_delays_may_come_back_when_it_has_drained() -> None:
    refusal = refused(ask(worker(rate=1_000.0), ttft_ms=1_000.0, queued_tokens={LATENCY: 2_000}))

    assert refusal.code == "deadline_unattainable"
    assert refusal.retry_after_ms == pytest.approx(1_120.0)


def test_more_workers_drain_the_queue_faster() -> None:
    queued = {LATENCY: 2_000}

    alone = admitted(ask(worker(), queued_tokens=queued)).expected_ttft_ms
    together = admitted(ask(worker(), worker(), queued_tokens=queued)).expected_ttft_ms

    assert alone == pytest.approx(2_120.0)
    assert together == pytest.approx(1_120.0)


def test_lower_lanes_do_not_stand_in_the_way() -> None:
    queued = {THROUGHPUT: 1_000_000}

    assert admitted(ask(worker(), lane=LATENCY, ttft_ms=500.0, queued_tokens=queued)).guaranteed
    refused(ask(worker(), lane=THROUGHPUT, ttft_ms=500.0, queued_tokens=queued))


def test_queued_jobs_of_unknown_size_count_as_typical_ones() -> None:
    assert admitted(ask(worker(), queued={LATENCY: 2})).expected_ttft_ms == pytest.approx(2 * 512 + 120)


def test_without_a_free_slot_nothing_is_guaranteed() -> None:
    full = worker(running={"latency": 8})

    assert not admitted(ask(full, deadline_ms=5_000.0)).guaranteed
    assert admitted(ask(full, worker(), deadline_ms=5_000.0)).guaranteed


def test_slots_of_the_lane_below_count_as_free() -> None:
    assert admitted(ask(worker(running={"throughput": 8}), deadline_ms=5_000.0)).guaranteed


def test_before_anything_was_measured_nothing_is_refused_and_nothing_promised() -> None:
    answer = admitted(ask(worker(rate=0.0, step_ms=0.0), deadline_ms=1.0))

    assert answer == Admitted(guaranteed=False, expected_ttft_ms=None)
