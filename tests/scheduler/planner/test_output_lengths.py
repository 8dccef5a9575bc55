"""What is expected of an output, by what outputs of its kind became."""

from fairlane.scheduler.planner.forecast import ENOUGH, Lengths
from fairlane.scheduler.planner.sequence import Sequence
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.messages import Job
from tests.support.scheduler.planner_world import LATENCY, THROUGHPUT, job


def expected(lengths: Lengths, one: Job, produced: int = 0) -> int:
    seq = Sequence(
        id=SeqId(one.job_id, 0),
        job=one,
        epoch=1,
        arrived_ms=0.0,
        first_due_ms=1_000.0,
        promoted_ms=30_000.0,
        granted_until=one.max_tokens,
        output=[0] * produced,
    )
    return lengths.remaining(seq)


def taught(*outputs: tuple[Job, int], most: int = 100) -> Lengths:
    lengths = Lengths(most)
    for one, length in outputs:
        for _ in range(ENOUGH):
            lengths.learn(one, length)
    return lengths


def test_before_anything_ended_an_output_takes_all_that_it_may() -> None:
    assert expected(Lengths(), job("a", max_tokens=500), produced=20) == 480


def test_an_output_is_expected_to_become_as_long_as_those_before_it() -> None:
    one = job("a", max_tokens=500)

    assert expected(taught((one, 100)), one, produced=30) == 70


def test_outputs_that_ended_shorter_than_this_one_is_say_nothing_of_it() -> None:
    one = job("a", max_tokens=500)

    assert expected(taught((one, 100), (one, 300)), one, produced=100) == 200
    assert expected(taught((one, 100), (one, 300)), one, produced=300) == 200, "all that it may"


def test_those_who_state_alike_are_taken_to_mean_alike() -> None:
    short, long = job("a", max_tokens=200), job("b", max_tokens=500)
    lengths = taught((short, 150), (long, 400))

    assert expected(lengths, job("c", max_tokens=250)) == 150
    assert expected(lengths, job("d", max_tokens=300)) == 300, "400, and no more than it may"


def test_few_of_its_own_size_fall_back_on_the_tenant_and_then_on_the_lane() -> None:
    lengths = taught((job("a", tenant="acme", max_tokens=500), 100), (job("b", tenant="globex", max_tokens=500), 400))

    assert expected(lengths, job("c", tenant="acme", max_tokens=4_000)) == 100
    assert expected(lengths, job("d", tenant="initech", max_tokens=4_000)) == 400, "the longer of the lane's"
    assert expected(lengths, job("e", LATENCY, tenant="acme", max_tokens=4_000)) == 4_000


def test_tenants_beyond_the_most_share_their_lane() -> None:
    first, second = job("a", THROUGHPUT, tenant="acme", max_tokens=500), job("b", tenant="globex", max_tokens=500)
    lengths = taught((first, 300), (second, 100), most=2)

    assert expected(lengths, first) == 300
    assert expected(lengths, second) == 300, "the longer of the lane's"
