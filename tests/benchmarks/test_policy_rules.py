"""What makes each policy to compare with that policy."""

import pytest

from benchmarks.scheduling.policies.bands import Bands
from benchmarks.scheduling.policies.clairvoyant import Clairvoyant
from benchmarks.scheduling.policies.edf import Edf
from benchmarks.scheduling.policies.fcfs_sarathi import FcfsSarathi
from benchmarks.scheduling.policies.fcfs_vllm import FcfsVllm
from benchmarks.scheduling.policies.hygen import HyGen
from benchmarks.scheduling.policies.mlfq import Mlfq
from benchmarks.scheduling.policies.niyama import Niyama
from benchmarks.scheduling.policies.priority_sglang import PrioritySglang
from benchmarks.scheduling.policies.priority_vllm import PriorityVllm
from benchmarks.scheduling.policies.vtc import Vtc
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.simulation.workload import Hardware
from tests.support.benchmarks.stage import HARDWARE, LATENCY, THROUGHPUT, Stage, request


def test_vllm_preempts_the_last_admitted() -> None:
    worker = Stage([request(name, prompt=80, output=60) for name in ("first", "second", "third")])

    worker.play(FcfsVllm)

    assert worker.preempted() == ["third"]
    assert worker.ends() == ["first", "second", "third"]


def test_vllm_gives_the_budget_to_running_work_first() -> None:
    worker = Stage([request("old", output=20), request("new", at_ms=50.0, prompt=200)])

    worker.play(FcfsVllm)

    mixed = next(step for step in worker.steps if "new" in worker.tokens(step))
    assert worker.tokens(mixed) == {"old": 1, "new": 127}


def test_vllm_priority_preempts_the_lowest_even_if_admitted_first() -> None:
    batch = [request(f"batch{number}", prompt=80, output=60) for number in range(2)]
    worker = Stage([*batch, request("chat", LATENCY, at_ms=1.0, prompt=80, output=60)])

    worker.play(PriorityVllm)

    assert worker.preempted() == ["batch1"]


def test_vllm_priority_orders_what_waits_and_preempts_nothing_for_it() -> None:
    batch = [request(f"batch{number}", output=20 + 5 * number) for number in range(4)]
    worker = Stage([*batch, request("chat", LATENCY, at_ms=20.0)], max_sequences=2)

    worker.play(PriorityVllm)

    assert worker.preempted() == []
    assert worker.firsts() == ["batch0", "batch1", "chat", "batch2", "batch3"]


@pytest.mark.parametrize(("threshold", "preempted"), [(10, ["batch1"]), (100, [])])
def test_sglang_preempts_for_a_slot_beyond_its_threshold(threshold: int, preempted: list[str]) -> None:
    batch = [request(f"batch{number}", output=40) for number in range(2)]
    worker = Stage([*batch, request("chat", LATENCY, at_ms=50.0)], max_sequences=2)

    worker.play(lambda setup: PrioritySglang(setup, threshold=threshold))

    assert worker.preempted() == preempted
    assert (worker.ends()[0] == "chat") == bool(preempted)


@pytest.mark.parametrize("preempts_for_kv", [False, True])
def test_sglang_does_not_preempt_for_blocks_unless_told_to(preempts_for_kv: bool) -> None:
    batch = [request(f"batch{number}", prompt=100, output=40) for number in range(2)]
    worker = Stage([*batch, request("chat", LATENCY, at_ms=50.0, prompt=100)])

    worker.play(lambda setup: PrioritySglang(setup, preempts_for_kv=preempts_for_kv))

    assert bool(worker.preempted()) == preempts_for_kv


def test_sglang_prefills_before_it_decodes_and_never_both() -> None:
    worker = Stage([request("old", output=20), request("new", at_ms=50.0, prompt=200)])

    worker.play(PrioritySglang)

    kinds = [{len(row.token_ids) > 1 for row in step.plan.rows} for step in worker.steps]
    assert all(len(kind) == 1 for kind in kinds)
    assert [step.plan.features.prefill_tokens for step in worker.steps if step.plan.features.prefill_tokens] == [
        8,
        128,
        72,
    ]


def test_sarathi_decodes_in_every_step_of_a_long_prompt() -> None:
    worker = Stage([request("old", output=30), request("new", at_ms=50.0, prompt=150)])

    worker.play(lambda setup: FcfsSarathi(setup, chunk_tokens=32))

    chunks = [worker.tokens(step) for step in worker.steps if worker.tokens(step).get("new", 0) > 1]
    assert len(chunks) == 5
    assert all(chunk["old"] == 1 and sum(chunk.values()) <= 32 for chunk in chunks)


def test_edf_serves_the_earliest_deadline_of_those_that_wait() -> None:
    waiting = [request(name, at_ms=10.0, ttft_ms=ttft_ms) for name, ttft_ms in (("c", 900), ("a", 500), ("b", 700))]
    worker = Stage([request("running", output=40), *waiting], max_sequences=1)

    worker.play(Edf)

    assert worker.firsts() == ["running", "a", "b", "c"]
    assert worker.preempted() == []


def test_mlfq_lets_a_short_request_overtake_one_that_has_run_for_long() -> None:
    worker = Stage([request("long", output=60), request("short", at_ms=200.0, output=3)], max_sequences=1)

    worker.play(Mlfq)

    assert worker.ends() == ["short", "long"]


def test_mlfq_puts_a_long_prompt_where_its_quantum_is() -> None:
    """Both arrive together behind a running one: the short prompt joins a higher queue."""
    together = [request("big", at_ms=1.0, prompt=100), request("small", at_ms=1.0, prompt=4)]
    slow = Hardware(step=(1.0, 0.1, 1.0, 0.0, 0.0), copy=(0.1, 0.05))
    worker = Stage([request("now", prompt=60, output=1), *together], max_sequences=1, hardware=slow)

    worker.play(Mlfq)

    assert worker.firsts() == ["now", "small", "big"]


def test_mlfq_swaps_the_lowest_out_and_in_again() -> None:
    long = [request(f"long{number}", prompt=100, output=40) for number in range(2)]
    worker = Stage([*long, request("short", at_ms=200.0, prompt=100, output=2)])

    worker.play(Mlfq)

    assert any(step.plan.swap_out for step in worker.steps)
    assert any(step.plan.swap_in for step in worker.steps)
    assert worker.records["long0"].computed == 139, "nothing was recomputed"
    assert worker.ends()[0] == "short"


def test_vtc_counts_prompt_and_output_by_tenant() -> None:
    worker = Stage([request("a", tenant="ann", prompt=10, output=5), request("b", tenant="bob", prompt=20, output=7)])

    policy = worker.play(Vtc)

    assert policy.counters == {"ann": 10 + 2 * 5, "bob": 20 + 2 * 7}


def test_vtc_serves_the_least_served_tenant_next() -> None:
    flood = [request(f"flood{number}", tenant="ann") for number in range(4)]
    worker = Stage([*flood, request("late", at_ms=1.0, tenant="bob")], max_sequences=1)

    worker.play(Vtc)

    assert worker.firsts()[:2] == ["flood0", "late"]


def test_vtc_lifts_a_tenant_that_was_idle() -> None:
    flood = [request(f"flood{number}", tenant="ann") for number in range(6)]
    returning = [request(f"back{number}", at_ms=300.0, tenant="bob") for number in range(3)]
    worker = Stage([*flood, *returning], max_sequences=1)

    worker.play(Vtc)

    order = worker.firsts()
    assert order.index("back2") > order.index("flood4"), "credit of idle times is no monopoly"


def test_vtc_looks_past_nobody() -> None:
    big = request("big", at_ms=1.0, prompt=150, output=80, tenant="bob")
    small = request("small", at_ms=1.0, tenant="ann")
    worker = Stage([request("first", prompt=100, output=60, tenant="ann"), big, small])

    worker.play(Vtc)

    assert worker.firsts() == ["first", "big", "small"]


def test_vtc_with_an_oracle_charges_the_output_ahead() -> None:
    outputs = [request("long", tenant="ann", output=60), request("short", tenant="bob", output=4)]
    more = [request("ann2", tenant="ann"), request("bob2", tenant="bob")]
    worker = Stage([*outputs, *more], max_sequences=2)

    policy = worker.play(lambda setup: Vtc(setup, oracle=True))

    assert worker.firsts()[2:] == ["bob2", "ann2"]
    assert policy.counters == {"ann": 16 + 2 * 68, "bob": 16 + 2 * 12}


def test_bands_empty_the_upper_band_first_and_preempt_nothing() -> None:
    batch = [request(f"batch{number}", output=20) for number in range(12)]
    chats = [request(f"chat{number}", LATENCY, at_ms=20.0) for number in range(3)]
    worker = Stage([*batch, *chats], max_sequences=2)

    worker.play(Bands)

    order = worker.firsts()
    assert max(order.index(chat.job_id) for chat in chats) < order.index("batch7")
    assert order.index("chat0") > order.index("batch5"), "what the engine was given stays before it"
    assert worker.preempted() == []


def test_bands_prefer_the_tenant_that_attained_least() -> None:
    ann = [request(f"ann{number}", tenant="ann") for number in range(9)]
    worker = Stage([*ann, request("bob0", at_ms=300.0, tenant="bob")], max_sequences=1)

    worker.play(lambda setup: Bands(setup, queue_limit=1))

    assert worker.firsts().index("bob0") < worker.firsts().index("ann8")


def test_bands_expire_what_waits_longer_than_its_lane_may() -> None:
    slow = request("slow", prompt=8, output=250)
    worker = Stage(
        [slow, *(request(f"chat{number}", LATENCY, at_ms=1.0) for number in range(9))],
        max_sequences=1,
        hardware=Hardware(step=(1000.0, 0.0, 0.0, 0.0, 0.0), copy=(0.0, 0.0)),
    )

    worker.play(lambda setup: Bands(setup, queue_limit=1))

    outcomes = [record.outcome for record in worker.records.values()]
    assert outcomes.count(Outcome.EXPIRED) == 8
    assert outcomes.count(Outcome.FINISHED) == 2


def test_niyama_relegates_what_comes_too_late_anyway() -> None:
    waiting = [request("hopeless", prompt=150, ttft_ms=5.0), request("feasible", prompt=100, ttft_ms=500.0)]
    worker = Stage(waiting)

    worker.play(Niyama)

    assert worker.firsts() == ["feasible", "hopeless"]


def test_niyama_prefers_the_shorter_of_equal_deadlines() -> None:
    worker = Stage([request("long", prompt=150), request("short", prompt=40)], max_step_tokens=64)

    worker.play(Niyama)

    assert worker.firsts() == ["short", "long"]


def test_niyama_sizes_chunks_by_the_slack_of_the_decodes() -> None:
    def largest_chunk(ttft_ms: float) -> int:
        running = request("running", LATENCY, output=20, ttft_ms=ttft_ms)
        arriving = request("arriving", at_ms=13.0, prompt=2500)
        worker = Stage([running, arriving], blocks=400, max_step_tokens=2600)
        worker.play(Niyama)
        beside = [worker.tokens(step) for step in worker.steps if "running" in worker.tokens(step)]
        return max(tokens.get("arriving", 0) for tokens in beside)

    assert largest_chunk(ttft_ms=10.0) < largest_chunk(ttft_ms=1000.0)


def test_hygen_fills_no_more_than_the_budget_with_offline_work() -> None:
    chat = request("chat", LATENCY, output=30)
    worker = Stage([chat, *(request(f"batch{number}", prompt=60, output=30) for number in range(6))])

    worker.play(lambda setup: HyGen(setup, budget_ms=12.0))

    mixed = [step for step in worker.steps if len(step.plan.rows) > 1 and "chat" in worker.tokens(step)]
    assert mixed
    assert max(HARDWARE.step_ms(step.plan.features) for step in mixed) <= 12.0


def test_hygen_takes_blocks_back_from_offline_work() -> None:
    batch = [request(f"batch{number}", prompt=100, output=40) for number in range(2)]
    worker = Stage([*batch, request("chat", LATENCY, at_ms=50.0, prompt=100)])

    worker.play(HyGen)

    assert worker.preempted() == ["batch1"]
    assert worker.ends()[0] == "chat"


def test_the_clairvoyant_is_not_held_up_by_blocks() -> None:
    worker = Stage([request(f"chat{number}", LATENCY, prompt=100) for number in range(8)], blocks=2, holds_kv=False)

    worker.play(Clairvoyant)

    assert worker.preempted() == []
    assert all(record.outcome is Outcome.FINISHED for record in worker.records.values())


def test_the_clairvoyant_drops_what_cannot_be_in_time_and_the_longest_of_too_many() -> None:
    late = request("late", LATENCY, ttft_ms=5.0)
    crowd = [
        request(name, LATENCY, prompt=prompt, ttft_ms=60.0) for name, prompt in (("l", 900), ("m", 300), ("s", 200))
    ]
    worker = Stage([late, *crowd], max_step_tokens=2048, holds_kv=False)

    worker.play(Clairvoyant)

    dropped = [name for name, record in worker.records.items() if record.outcome is Outcome.EXPIRED]
    assert dropped == ["late", "l"]
    assert all(worker.records[name].late_tokens == 0 for name in ("m", "s"))


def test_the_clairvoyant_serves_deadlines_before_arrivals() -> None:
    worker = Stage(
        [request("batch", THROUGHPUT, prompt=2000, output=2), request("chat", LATENCY, at_ms=20.0, prompt=200)],
        holds_kv=False,
    )

    worker.play(Clairvoyant)

    assert worker.firsts() == ["chat", "batch"]


def test_the_clairvoyant_begins_no_more_than_it_can_keep_in_time() -> None:
    chats = [request(f"chat{number}", LATENCY, at_ms=5.0 * number, prompt=50, output=60) for number in range(100)]
    worker = Stage(chats, max_sequences=4, holds_kv=False)

    worker.play(Clairvoyant)

    served = [record for record in worker.records.values() if record.outcome is Outcome.FINISHED]
    assert len(served) >= 20, "four rows per step, and a tenth of the requests due in each"
    assert sum(record.late_tokens for record in served) <= 0.02 * sum(record.tokens for record in served)
