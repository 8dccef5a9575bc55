"""What the benchmarks do with an engine, on the tiny model."""

import pytest
import torch

from benchmarks.engine.exactness import make_prompts
from benchmarks.engine.forced import Agreement, served_logits
from benchmarks.engine.ours import admission, serve
from benchmarks.engine.overhead import TimedModel, overhead
from benchmarks.engine.preempting import preempt
from benchmarks.engine.profile import decode
from benchmarks.engine.programme import arrivals_s
from fairlane.worker.model.reference import TransformersModel
from tests.support.worker.stepped import Client

REQUESTS = [([number + 1] * 5, tokens) for number, tokens in enumerate((4, 1, 6, 2, 3))]
NO_LIMIT = 0


def most_live(model: TransformersModel, rule: str, slots: int) -> list[int]:
    """How many rows each step of a run had."""
    engine = Client(model).engine
    rows: list[int] = []
    step = engine.step

    def counted(now_ms: float) -> object:
        report = step(now_ms)
        rows.append(len(report.plan.rows))
        return report

    engine.step = counted  # type: ignore[method-assign, assignment] # watched, not changed
    served = serve(engine, REQUESTS, admission(rule, slots))
    assert [len(each) for each in served.outputs.values()] == [tokens for _, tokens in REQUESTS]
    assert len(served.latencies_s) == len(REQUESTS)
    return rows


def test_prompts_reach_from_one_token_to_the_longest() -> None:
    lengths = sorted(len(prompt) for prompt in make_prompts(50, 2000, 100))

    assert (lengths[0], lengths[-1], len(lengths)) == (1, 2000, 50)


def test_static_batches_end_before_others_begin_and_a_reserved_slot_is_filled_at_once(tiny: TransformersModel) -> None:
    static, reserve, paged = (most_live(tiny, rule, 2) for rule in ("static", "reserve", "paged"))

    assert max(static) == max(reserve) == 2
    assert max(paged) == 5
    assert len(static) > len(reserve) > len(paged)


def test_arrivals_come_by_the_clock_and_each_waits_its_turn(tiny: TransformersModel) -> None:
    served = serve(Client(tiny).engine, REQUESTS, admission("paged", NO_LIMIT), arrivals_s(len(REQUESTS), 200.0))

    assert len(served.latencies_s) == len(REQUESTS)
    assert served.seconds >= arrivals_s(len(REQUESTS), 200.0)[-1]


@pytest.mark.parametrize(("host_slots", "mode"), [(64, "swap"), (0, "recompute")])
def test_urgent_arrivals_preempt_and_change_no_output(tiny: TransformersModel, host_slots: int, mode: str) -> None:
    requests, urgent = (
        [([number + 1] * 9, 40) for number in range(6)],
        [([50 + number] * 16, 30) for number in range(4)],
    )
    little, ample = Client(tiny, blocks=40, host_slots=host_slots), Client(tiny, blocks=400, host_slots=0)

    found, expected = (preempt(one.engine, one.costs, requests, urgent) for one in (little, ample))

    assert found.outputs == expected.outputs
    assert expected.costs == []
    assert mode in {cost.mode for cost in found.costs}


def test_what_is_not_the_forward_pass_is_part_of_a_step(tiny: TransformersModel) -> None:
    found = overhead(TimedModel(tiny), [([number + 1] * 5, 12) for number in range(4)])

    assert 0.0 < found["share"] < 1.0
    assert found["steps"] >= 8


def test_a_profile_names_the_operators_of_decode_steps(tiny: TransformersModel) -> None:
    engine = Client(tiny).engine
    alone_ms, found, _ = decode(engine, [([number + 1] * 5, 20) for number in range(3)], 4)

    assert alone_ms > 0.0
    assert {"aten::mm", "attention (sdpa)", "plan", "apply"} <= set(found)
    assert engine.planner.blocks_free == engine.planner.pool_sizes.blocks


def test_served_logits_are_those_of_the_whole_text_at_once(tiny: TransformersModel) -> None:
    texts = [([1, 2, 3], [4, 5]), ([9] * 20, [6, 7])]
    agreement = Agreement()

    for number, (text, found) in enumerate(zip(texts, served_logits(tiny, texts), strict=True)):
        with torch.inference_mode():
            expected = torch.stack([tiny.plain_logits([*text[0], *text[1][:place]]) for place in range(len(text[1]))])
        agreement.add(number, expected, found)

    assert agreement.places == 4
    assert agreement.share == 1.0
    assert agreement.largest_error < 1e-5


def test_another_choice_is_a_near_tie_within_bfloat16s_rounding_only() -> None:
    expected = torch.tensor([[20.0, 19.9, 0.0], [20.0, 19.0, 0.0], [20.0, 19.0, 0.0]])
    found = torch.tensor([[19.9, 20.0, 0.0], [19.0, 20.0, 0.0], [20.0, 19.0, 0.0]])
    agreement = Agreement()

    agreement.add(0, expected, found)

    assert [one.is_near_tie for one in agreement.disagreements] == [True, False]
    assert agreement.share == pytest.approx(1 / 3)
    assert agreement.largest_error == pytest.approx(1 / 20)
