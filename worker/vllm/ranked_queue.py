"""vLLM's queue of waiting requests, in an order that is given from outside and moves with time."""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class RankedQueue(Generic[R]):
    """The methods of `vllm.v1.core.sched.request_queue.RequestQueue`, over a heap of ranks.

    `rank` gives a request's place, the lowest first, as a tuple that compares with every other; equals stay in order of
    arrival here. A request keeps the rank that it came with until `rerank`.
    """

    def __init__(self, rank: Callable[[R], tuple[Any, ...]]) -> None:
        self._rank = rank
        self._ticket = itertools.count()
        self._heap: list[tuple[tuple[Any, ...], int, R]] = []

    def rerank(self) -> None:
        """Rank everything anew."""
        self._heap = [(self._rank(request), ticket, request) for _, ticket, request in self._heap]
        heapq.heapify(self._heap)

    def unordered(self) -> list[R]:
        """What waits, in no order, and for less than sorting it."""
        return [request for _, _, request in self._heap]

    def first(self, count: int) -> list[R]:
        """The most urgent ones, in order."""
        return [request for _, _, request in heapq.nsmallest(count, self._heap, key=lambda entry: entry[:2])]

    def add_request(self, request: R) -> None:
        heapq.heappush(self._heap, (self._rank(request), next(self._ticket), request))

    def prepend_request(self, request: R) -> None:
        """Add it: there is no front beside the order."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[R]) -> None:
        for request in requests:
            self.add_request(request)

    def pop_request(self) -> R:
        """Raises IndexError where nothing waits."""
        return heapq.heappop(self._heap)[2]

    def peek_request(self) -> R:
        """Raises IndexError where nothing waits."""
        return self._heap[0][2]

    def remove_request(self, request: R) -> None:
        """Raises ValueError where it does not wait here."""
        left = [entry for entry in self._heap if entry[2] is not request]
        if len(left) == len(self._heap):
            raise ValueError("the request does not wait here")
        self._heap = left
        heapq.heapify(self._heap)

    def remove_requests(self, requests: Iterable[R]) -> None:
        """Remove those of them that wait here."""
        gone = {id(request) for request in requests}
        self._heap = [entry for entry in self._heap if id(entry[2]) not in gone]
        heapq.heapify(self._heap)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[R]:
        return iter([request for _, _, request in sorted(self._heap, key=lambda entry: entry[:2])])
