"""An engine that makes its tokens at once; `less` of them, where that is asked for."""

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.common.turns import Answer, Order, answer_turns, timed


def build(options: Mapping[str, Any]) -> Callable[[Order], Answer]:
    less = options["less"]
    print("noise of a library")  # noqa: T201 - goes to the log, not among the answers
    serve = timed(lambda requests: sum(tokens for _, tokens in requests) - less)
    return lambda order: {**serve(order), "order": sorted(order)}


if __name__ == "__main__":
    answer_turns(build, "pytest")
