"""The door: sizes, the KV pool, width, deadlines."""

import math
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from fairlane.gateway.dialects.openai.requests import GenerationRequest
from fairlane.gateway.errors import ApiError, LimitBlock
from fairlane.gateway.fleet import ServedModel
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.gateway.pipeline.admission import admit, measure
from fairlane.gateway.request.service_level import ServiceLevel
from fairlane.quotas.tenants import Tenant
from fairlane.scheduler.admission.decide import Admitted
from fairlane.scheduler.admission.demand import ServiceClass
from fairlane.scheduler.admission.open_requests import OpenRequests, Request
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LATENCY, LaneName
from fairlane.scheduler.protocol.messages import WorkerStatus
from fairlane.scheduler.queue.types import LaneDepth
from tests.support.gateway.cards import byte_level_card

ACME = Tenant(id="acme", root="acme")
CONTEXT = 512
PROMISED, BEST_EFFORT = ServiceClass(0, best_effort=False), ServiceClass(0, best_effort=True)
WEIGHTS = (10.0, 0.0, 1.0, 0.0, 0.0)


def worker(**fields: Any) -> WorkerStatus:
    known = {
        "worker_id": "w",
        "model": "tiny",
        "queue": "tiny@0",
        "card_sha256": "0",
        "started_at_ms": 0.0,
        "blocks_total": 64,
        "max_sequences": 8,
    }
    return WorkerStatus(**{**known, **fields})


def model(*workers: WorkerStatus) -> ServedModel:
    depths = {lane: LaneDepth(queued=0, oldest_wait_ms=0) for lane in LaneName}
    return ServedModel("tiny", "tiny@0", TextModel(byte_level_card()), workers, depths)


def service_level(deadline_ms: float | None = None, hard_ttft_ms: float | None = None) -> ServiceLevel:
    return ServiceLevel(
        lane=LATENCY,
        service_tier="default",
        deadline_ms=deadline_ms,
        hard_ttft_ms=hard_ttft_ms,
        max_wait_ms=math.inf,
    )


def known() -> OpenRequests:
    return OpenRequests(DEFAULT_LANES)


def size(prompt_tokens: int, max_tokens: int, *, stated: bool = True) -> Request:
    return Request(
        lane=LATENCY.name,
        tenant=ACME.id,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        max_tokens_stated=stated,
    )


def measured(prompt_tokens: int, max_tokens: int | None, of: ServedModel) -> Request:
    request = GenerationRequest(model="tiny", max_tokens=max_tokens)
    return measure(prompt_tokens, request, of, service_level(), ACME, "messages", elapsed_ms=0.0)


def let_in(*sizes: Request, of: ServedModel, agreed: ServiceLevel | None = None, n: int = 1) -> list[Admitted]:
    return at(known(), *sizes, of=of, agreed=agreed, n=n)


def at(
    door: OpenRequests,
    *sizes: Request,
    of: ServedModel,
    agreed: ServiceLevel | None = None,
    n: int = 1,
    ids: str = "f",
) -> list[Admitted]:
    agreed = agreed or service_level()
    due = {"deadline_ms": agreed.deadline_ms, "ttft_ms": agreed.hard_ttft_ms}
    asked = [msgspec.structs.replace(each, choices=n, **due) for each in sizes]
    return admit([f"{ids}{number}" for number in range(len(asked))], asked, of, door, now_ms=0.0)


def refusal(one: Request, of: ServedModel, agreed: ServiceLevel | None = None, *, n: int = 1) -> ApiError:
    with pytest.raises(ApiError) as refused:
        let_in(one, of=of, agreed=agreed, n=n)
    return refused.value


def test_absent_max_tokens_is_what_the_context_leaves() -> None:
    assert measured(12, None, model(worker())) == size(12, CONTEXT - 12, stated=False)
    assert measured(12, None, model()).max_tokens == CONTEXT - 12


def test_a_smaller_kv_pool_leaves_less() -> None:
    assert measured(12, None, model(worker(blocks_total=4))) == size(12, 64 - 12, stated=False)


@pytest.mark.parametrize(
    ("prompt", "asked", "param"),
    [(12, CONTEXT - 11, "max_tokens"), (CONTEXT, 1, "max_tokens"), (CONTEXT, None, "messages")],
)
def test_more_than_the_context_names_what_to_shorten(prompt: int, asked: int | None, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        measured(prompt, asked, model(worker()))

    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", param)
    assert str(CONTEXT) in refused.value.message


def test_what_can_never_fit_the_kv_pool_is_refused_with_its_size() -> None:
    error = refusal(size(12, 100), model(worker(blocks_total=4), worker(blocks_total=6)))

    assert (error.code, error.param) == ("request_exceeds_limit", "max_tokens")
    assert "96" in error.message
    assert error.limit == LimitBlock("kv_pool", "worker", 96, 0, 0, 112, None)


def test_more_choices_than_fit_at_once_are_refused() -> None:
    wide, thin = size(12, 20), size(60, 4)

    too_many, too_large = refusal(wide, model(worker()), n=9), refusal(thin, model(worker(blocks_total=4)), n=5)

    assert (too_many.param, too_many.limit) == ("n", LimitBlock("max_sequences", "worker", 8, 0, 0, 9, None))
    assert (too_large.param, too_large.limit) == ("n", LimitBlock("kv_pool", "worker", 64, 0, 0, 65, None))


@pytest.mark.parametrize("of", [model(), model(worker(draining=True))])
def test_without_a_worker_nothing_is_admitted(of: ServedModel) -> None:
    error = refusal(size(12, 20), of)

    assert error.code == "no_worker"
    assert error.retry_after_s is not None


def test_a_deadline_that_cannot_be_met_says_when_it_could() -> None:
    served, small = model(worker(step_weights=WEIGHTS, step_ms=10.0)), size(12, 2)
    other, door = known(), known()
    for number in range(100):
        at(other, size(12, 100), of=served, agreed=service_level(deadline_ms=1e7), ids=f"other{number}")
    door.receive_reports([(other.report(0.0), 0)], {}, 0.0)

    with pytest.raises(ApiError) as refused:
        at(door, small, of=served, agreed=service_level(deadline_ms=1_000.0))
    error = refused.value
    assert error.code == "deadline_unattainable"
    assert error.retry_after_s is not None
    assert error.retry_after_s > 1
    with pytest.raises(ApiError) as hopeless:
        at(door, size(12, 400), of=served, agreed=service_level(deadline_ms=1_000.0))
    assert hopeless.value.retry_after_s is None
    [answer] = at(door, small, of=served)
    assert not answer.guaranteed


def test_a_stated_deadline_with_room_is_guaranteed() -> None:
    idle = model(worker(step_weights=WEIGHTS, step_ms=10.0))

    [answer] = let_in(size(12, 2), of=idle, agreed=service_level(deadline_ms=60_000.0))

    assert answer.guaranteed
    assert answer.expected_ttft_ms is not None


def test_a_deadline_that_passed_while_the_body_came_is_refused() -> None:
    request, late = GenerationRequest(model="tiny", max_tokens=2), service_level(deadline_ms=50.0)
    asked = measure(12, request, model(worker()), late, ACME, "messages", elapsed_ms=60.0)

    with pytest.raises(ApiError) as refused:
        admit(["f"], [asked], model(worker()), known(), now_ms=0.0)

    error = refused.value

    assert (error.code, error.retry_after_s) == ("deadline_unattainable", None)


def test_the_prompts_of_one_request_stand_behind_each_other() -> None:
    idle, small = model(worker(step_weights=WEIGHTS, step_ms=10.0)), size(100, 2)

    assert all(answer.guaranteed for answer in let_in(*[small] * 2, of=idle, agreed=service_level(hard_ttft_ms=500.0)))
    with pytest.raises(ApiError) as refused:
        let_in(*[small] * 9, of=idle, agreed=service_level(hard_ttft_ms=500.0))
    assert refused.value.code == "deadline_unattainable"


def test_requests_on_their_way_to_the_queue_count_for_those_that_come_meanwhile() -> None:
    idle, small, door = model(worker(step_weights=WEIGHTS, step_ms=10.0)), size(100, 2), known()
    asked = service_level(hard_ttft_ms=2_000.0)

    answers: list[Admitted] = []
    with suppress(ApiError):
        for number in range(100):
            answers += at(door, small, of=idle, agreed=asked, ids=f"{number}-")

    assert 0 < sum(answer.guaranteed for answer in answers) < 20


def test_a_request_of_which_one_prompt_is_refused_leaves_nothing_at_the_door() -> None:
    idle, small, door = model(worker(step_weights=WEIGHTS, step_ms=10.0)), size(100, 2), known()

    with pytest.raises(ApiError):
        at(door, *[small] * 9, of=idle, agreed=service_level(hard_ttft_ms=500.0))

    assert door.ledger.at(PROMISED).loads == 0
    assert door.promised(LaneName.LATENCY, 0.0) == pytest.approx(0.0, abs=1e-9)


def test_an_unstated_length_enters_as_such() -> None:
    idle, door = model(worker(blocks_total=4_000, step_weights=WEIGHTS, step_ms=10.0)), known()

    at(door, size(100, 400, stated=False), of=idle)

    assert door.ledger.at(BEST_EFFORT).work_ms < 200.0
