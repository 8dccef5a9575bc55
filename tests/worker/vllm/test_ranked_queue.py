"""The queue beside a sorted list, over whatever vLLM may call."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairlane.worker.vllm.ranked_queue import RankedQueue


class Waiting:
    def __init__(self, urgency: int) -> None:
        self.urgency = urgency


class QueueBesideAList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue: RankedQueue[Waiting] = RankedQueue(lambda one: (one.urgency,))
        self.model: list[Waiting] = []

    def expected(self) -> list[Waiting]:
        return sorted(self.model, key=lambda one: one.urgency)

    @rule(urgency=st.integers(0, 4), prepends=st.booleans())
    def add(self, urgency: int, prepends: bool) -> None:
        request = Waiting(urgency)
        (self.queue.prepend_request if prepends else self.queue.add_request)(request)
        self.model.append(request)

    @precondition(lambda self: self.model)
    @rule()
    def pop(self) -> None:
        first = self.queue.pop_request()
        assert first is self.expected()[0]
        self.model.remove(first)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove_one(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.model))
        self.queue.remove_request(gone)
        self.model.remove(gone)

    @rule(data=st.data())
    def remove_some_and_a_stranger(self, data: st.DataObject) -> None:
        gone = [one for one in self.model if data.draw(st.booleans())]
        self.queue.remove_requests([*gone, Waiting(0)])
        self.model = [one for one in self.model if one not in gone]

    @rule(data=st.data())
    def rerank(self, data: st.DataObject) -> None:
        for one in self.model:
            one.urgency = data.draw(st.integers(0, 4))
        self.queue.rerank()

    @invariant()
    def holds_the_same_in_the_same_order(self) -> None:
        expected = self.expected()
        assert [*self.queue] == expected
        assert (len(self.queue), bool(self.queue)) == (len(expected), bool(expected))
        assert self.queue.first(3) == expected[:3]
        assert set(self.queue.unordered()) == set(expected)
        if expected:
            assert self.queue.peek_request() is expected[0]


TestQueueBesideAList = QueueBesideAList.TestCase


def test_removing_what_does_not_wait_is_refused() -> None:
    queue: RankedQueue[Waiting] = RankedQueue(lambda one: (one.urgency,))

    with pytest.raises(ValueError, match="not in the queue"):
        queue.remove_request(Waiting(0))


def test_a_queue_that_is_held_counts_its_requests_and_is_false() -> None:
    queue: RankedQueue[Waiting] = RankedQueue(lambda one: (one.urgency,))
    queue.add_request(Waiting(0))
    queue.is_held = True

    assert not queue
    assert len(queue) == len([*queue]) == 1
