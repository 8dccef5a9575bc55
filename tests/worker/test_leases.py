"""What the worker holds in the store's eyes."""

from fairlane.scheduler.protocol.messages import Cancel, Grant
from fairlane.worker.leases import HeldLeases
from tests.support.worker.scripted import lease


def test_a_job_is_held_from_its_take_until_it_is_let_go() -> None:
    holdings = HeldLeases()
    holdings.took([lease("a"), lease("b")])
    assert holdings.ids() == ["a", "b"]
    holdings.let_go("a", 1)
    assert holdings.ids() == ["b"]
    assert len(holdings) == 1


def test_a_job_that_has_come_again_is_not_let_go_for_its_former_life() -> None:
    holdings = HeldLeases()
    holdings.took([lease(epoch=1)])
    before = holdings.epochs(["job", "unknown"])
    holdings.took([lease(epoch=3)])
    for job_id, epoch in before:
        holdings.let_go(job_id, epoch)
    assert holdings.ids() == ["job"]


def test_a_word_that_overtakes_the_answer_of_a_take_is_heard_behind_it() -> None:
    holdings = HeldLeases()
    cancel, grant = Cancel(job_id="job"), Grant(job_id="job", granted_until=7)
    assert not holdings.received(grant)
    assert not holdings.received(cancel)
    assert holdings.took([lease()]) == [grant, cancel]
    assert holdings.received(cancel)


def test_a_word_about_what_the_take_did_not_bring_is_forgotten_with_it() -> None:
    holdings = HeldLeases()
    holdings.received(Cancel(job_id="job"))
    assert holdings.took([]) == []
    assert holdings.took([lease()]) == []


def test_a_word_about_a_job_that_is_taken_anew_is_heard_behind_it_again() -> None:
    holdings = HeldLeases()
    holdings.took([lease(epoch=1)])
    grant = Grant(job_id="job", granted_until=7)
    assert holdings.received(grant)
    assert holdings.took([lease(epoch=3)]) == [grant]


def test_a_lease_that_is_no_newer_than_what_is_held_is_known() -> None:
    holdings = HeldLeases()
    holdings.took([lease("a", epoch=2), lease("b", epoch=2)])
    leases = [lease("a", epoch=2), lease("b", epoch=3), lease("c")]
    assert holdings.known(leases) == leases[:1]
