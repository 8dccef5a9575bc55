"""vLLM's queue of waiting requests, in an external order that changes over time."""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class RankedQueue(Generic[R]):
    """Implements `vllm.v1.core.sched.request_queue.RequestQueue` with a heap of ranks, lowest first.

    Equal ranks keep their order of arrival. A request keeps its initial rank until `rerank`."""

    def __init__(self, rank: Callable[[R], tuple[Any, ...]]) -> None:
        self._rank = rank
        self._ticket = itertools.count()
        self._heap: list[tuple[tuple[Any, ...], int, R]] = []
        # Makes it false, so that vLLM admits no more requests in this step.
        self.is_held = False

    def rerank(self) -> None:
        self._heap = [(self._rank(request), ticket, request) for _, ticket, request in self._heap]
        heapq.heapify(self._heap)

    def unordered(self) -> list[R]:
        return [request for _, _, request in self._heap]

    def first(self, count: int) -> list[R]:
        return [request for _, _, request in heapq.nsmallest(count, self._heap, key=lambda entry: entry[:2])]

    def add_request(self, request: R) -> None:
        heapq.heappush(self._heap, (self._rank(request), next(self._ticket), request))

    prepend_request = add_request

    def prepend_requests(self, requests: Iterable[R]) -> None:
        for request in requests:
            self.add_request(request)

    def pop_request(self) -> R:
        return heapq.heappop(self._heap)[2]

    def peek_request(self) -> R:
        return self._heap[0][2]

    def remove_request(self, request: R) -> None:
        left = [entry for entry in self._heap if entry[2] is not request]
        if len(left) == len(self._heap):
            raise ValueError("the request is not in the queue")
        self._heap = left
        heapq.heapify(self._heap)

    def remove_requests(self, requests: Iterable[R]) -> None:
        gone = {id(request) for request in requests}
        self._heap = [entry for entry in self._heap if id(entry[2]) not in gone]
        heapq.heapify(self._heap)

    def __bool__(self) -> bool:
        return bool(self._heap) and not self.is_held

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[R]:
        return iter([request for _, _, request in sorted(self._heap, key=lambda entry: entry[:2])])
