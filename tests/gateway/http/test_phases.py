"""The phases of a connection's input: which moves are legal."""

import itertools

import pytest

from fairlane.gateway.http.phases import MOVES, IllegalMove, Input, Phase

ILLEGAL = [(old, new) for old, new in itertools.product(Phase, Phase) if new not in MOVES[old]]


def in_phase(phase: Phase) -> Input:
    received = Input()
    received.phase = phase
    return received


def test_every_phase_has_its_moves() -> None:
    assert set(MOVES) == set(Phase)


@pytest.mark.parametrize(("old", "new"), ILLEGAL, ids=[f"{old} to {new}" for old, new in ILLEGAL])
def test_an_illegal_move_raises_and_changes_nothing(old: Phase, new: Phase) -> None:
    received = in_phase(old)

    with pytest.raises(IllegalMove, match=f"from {old} to {new}"):
        received.move(new)

    assert received.phase is old


def test_no_phase_follows_the_end_and_nothing_is_parsed_after_a_refusal() -> None:
    assert MOVES[Phase.CLOSED] == set()
    assert MOVES[Phase.DISCARDED] == {Phase.CLOSED}


def test_requests_on_one_connection_are_a_legal_walk() -> None:
    received = Input()
    one = [Phase.HEAD, Phase.BODY, Phase.IDLE]
    upgrade = [Phase.HEAD, Phase.UPGRADE, *one]
    answered_early = [Phase.HEAD, Phase.BODY, Phase.LATE_BODY, Phase.IDLE]

    for phase in [*one, *upgrade, *answered_early, Phase.CLOSED]:
        received.move(phase)

    assert received.phase is Phase.CLOSED
