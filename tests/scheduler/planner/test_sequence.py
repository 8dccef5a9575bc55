from itertools import product

import pytest

from fairlane.scheduler.planner.sequence import MOVES, RESIDENT, IllegalTransition, Sequence, State, finish_reason
from fairlane.scheduler.planner.steps import SeqId
from tests.support.scheduler.planner_world import job


def sequence(
    *, prompt: int = 4, max_tokens: int = 4, granted_until: int = 4, min_tokens: int = 0, stop: tuple[int, ...] = ()
) -> Sequence:
    one = job("job", prompt=prompt, max_tokens=max_tokens, stop=stop, min_tokens=min_tokens)
    return Sequence(
        id=SeqId("job", 0),
        job=one,
        epoch=1,
        arrived_ms=0.0,
        first_due_ms=1_000.0,
        promoted_ms=30_000.0,
        granted_until=granted_until,
    )


def prefilled(seq: Sequence) -> Sequence:
    seq.move(State.PREFILL)
    seq.num_computed = seq.length
    return seq


def decoding(seq: Sequence) -> Sequence:
    prefilled(seq).append(7, 10.0)
    return seq


@pytest.mark.parametrize(("origin", "to"), [(a, b) for a, b in product(State, State) if b not in MOVES[a]])
def test_an_illegal_move_raises_and_changes_nothing(origin: State, to: State) -> None:
    seq = sequence()
    seq.state = origin

    with pytest.raises(IllegalTransition):
        seq.move(to)

    assert seq.state == origin


@pytest.mark.parametrize(("origin", "to"), [(a, b) for a in State for b in State if b in MOVES[a]])
def test_a_legal_move_is_made(origin: State, to: State) -> None:
    seq = sequence()
    seq.state = origin

    seq.move(to)

    assert seq.state == to


def test_every_state_can_end_and_the_end_is_final() -> None:
    assert all(State.FINISHED in MOVES[state] for state in State if state is not State.FINISHED)
    assert not MOVES[State.FINISHED]


def test_only_a_sequence_that_may_hold_blocks_can_be_preempted() -> None:
    preemptible = {state for state in State if State.SWAPPED in MOVES[state]}

    assert preemptible == {state for state in State if State.DROPPED in MOVES[state]}
    assert preemptible == RESIDENT | {State.SWAPPED, State.DROPPED}


def test_tokens_run_from_the_prompt_into_the_output() -> None:
    seq = sequence(prompt=4)
    seq.output = [901, 902, 903]

    assert seq.token_ids(0, 4) == seq.job.prompt
    assert seq.token_ids(3, 3) == (seq.job.prompt[3], 901, 902)
    assert seq.token_ids(5, 2) == (902, 903)


def test_after_its_prefill_a_sequence_lacks_one_token_and_decodes() -> None:
    seq = decoding(sequence())

    assert (seq.state, seq.pending, seq.first_token_ms) == (State.DECODE, 1, 10.0)


def test_a_token_while_some_are_pending_is_refused() -> None:
    seq = decoding(sequence())

    with pytest.raises(IllegalTransition):
        seq.append(8, 20.0)

    assert seq.output == [7]


def test_dropping_forgets_what_was_computed_and_swapping_does_not() -> None:
    dropped, swapped = decoding(sequence()), decoding(sequence())

    dropped.leave(State.DROPPED, 20.0)
    swapped.leave(State.SWAPPED, 20.0)

    assert (dropped.num_computed, swapped.num_computed) == (0, 4)
    assert (dropped.preemptions, dropped.stalled_since_ms) == (1, 20.0)


def test_dropping_the_end_keeps_what_was_computed_before_it() -> None:
    seq = decoding(sequence(prompt=40))

    seq.leave(State.DROPPED, 20.0, kept_tokens=32)
    assert (seq.num_computed, seq.pending, seq.is_resident) == (32, 9, False)

    seq.leave(State.DROPPED, 30.0, kept_tokens=36)
    assert seq.num_computed == 32, "what is lost stays lost"


def test_yielding_once_more_while_away_is_no_second_preemption() -> None:
    seq = decoding(sequence())

    for state, now_ms in ((State.SWAPPED, 20.0), (State.SWAPPED, 30.0), (State.DROPPED, 40.0)):
        seq.leave(state, now_ms)

    assert (seq.preemptions, seq.stalled_since_ms) == (1, 20.0)


def test_a_refused_preemption_changes_nothing() -> None:
    seq = sequence()

    with pytest.raises(IllegalTransition):
        seq.leave(State.DROPPED, 20.0)

    assert (seq.state, seq.preemptions, seq.stalled_since_ms) == (State.WAITING, 0, None)


def test_at_its_grant_a_sequence_pauses_and_a_grant_wakes_it() -> None:
    seq = decoding(sequence(granted_until=1))
    assert (seq.state, seq.is_runnable, seq.stalled_since_ms) == (State.PAUSED, False, 10.0)

    seq.grant(1)
    assert seq.state is State.PAUSED

    seq.grant(2)
    assert (seq.state, seq.is_runnable) == (State.DECODE, True)


def test_a_grant_never_shrinks_and_never_passes_max_tokens() -> None:
    seq = sequence(max_tokens=4, granted_until=2)

    seq.grant(1)
    assert seq.granted_until == 2

    seq.grant(99)
    assert seq.granted_until == 4


def test_a_grant_does_not_bring_swapped_kv_back() -> None:
    seq = decoding(sequence(granted_until=1))
    seq.leave(State.SWAPPED, 20.0)

    seq.grant(4)

    assert (seq.state, seq.is_runnable) == (State.SWAPPED, True)


def test_a_stall_lasts_from_the_first_of_pause_and_preemption() -> None:
    seq = decoding(sequence(granted_until=1))

    seq.leave(State.SWAPPED, 50.0)

    assert seq.stalled_since_ms == 10.0


@pytest.mark.parametrize(
    ("output", "min_tokens", "reason"),
    [
        ([], 0, None),
        ([5], 0, None),
        ([5, 9], 0, "stop"),
        ([5, 9], 3, "stop"),
        ([5, 9, 5], 0, None),
        ([5, 5, 5, 5], 0, "length"),
        ([5, 5, 5, 9], 0, "stop"),
    ],
)
def test_why_a_choice_ends(output: list[int], min_tokens: int, reason: str | None) -> None:
    one = job("job", max_tokens=4, stop=(9,), min_tokens=min_tokens)

    assert finish_reason(one, output) == reason


def test_what_is_shown_of_a_sequence_holds_no_token() -> None:
    seq = decoding(sequence())

    assert repr(seq) == "Sequence(SeqId(job_id='job', choice=0), decode, 4/5 tokens)"
