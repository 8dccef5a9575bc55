"""An engine in a process of its own: one JSON line asks it to serve requests, one JSON line answers.

Standard library alone, since peers' environments run the engines' side. Whatever libraries print goes to the log.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import IO, Any

THREADS = 2
"""Of each engine's arithmetic."""
ROOT = Path(__file__).parent.parent.parent
_LOG_TAIL = 3_000

Request = tuple[list[int], int]
"""Prompt token ids, and output tokens wanted: never fewer, whatever they are."""
Order = dict[str, Any]
"""What to do; `requests` among it, where it is to serve some."""
Answer = dict[str, Any]


class TurnError(RuntimeError):
    """An engine did not start, or did not do all the work; says which, and the end of its log."""


def answer_turns(build: Callable[[Mapping[str, Any]], Callable[[Order], Answer]], *packages: str) -> None:
    """The engine's side: build it from the options in the first argument, then answer one order after the other.
    The first answer says which versions of `packages` it is made of."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve = build(json.loads(sys.argv[1]))
    _say(answers, {name: metadata.version(name) for name in packages})
    for line in sys.stdin:
        _say(answers, serve(json.loads(line)))


def timed(run: Callable[[Sequence[Request]], int]) -> Callable[[Order], Answer]:
    """Serve by a function that returns how many output tokens it made."""

    def serve(order: Order) -> Answer:
        began = time.perf_counter()
        tokens = run(order["requests"])
        return {"seconds": time.perf_counter() - began, "tokens": tokens}

    return serve


def _say(answers: IO[str], answer: Answer) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


@dataclass
class Contender:
    """The asking side. Use it as a context: it starts at the first order, and ends with the block."""

    name: str
    module: str
    options: Mapping[str, Any]
    log: Path
    python: str = sys.executable
    versions: dict[str, str] = field(default_factory=dict)
    """Of what it is made of, once it has started."""
    _process: subprocess.Popen[str] | None = field(default=None, repr=False)

    def __enter__(self) -> "Contender":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            with self._process as process:  # waits, and closes its pipes
                process.kill()

    def ask(self, **order: object) -> Answer:
        """Have an order done. Raises TurnError."""
        process = self._started()
        assert process.stdin is not None  # noqa: S101 - a pipe, as asked for
        try:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._failed() from None
        return self._read(process)

    def serve(self, requests: Sequence[Request], **extras: object) -> Answer:
        """Have all requests served to their ends. Raises TurnError where tokens are missing."""
        answer = self.ask(requests=requests, **extras)
        wanted = sum(tokens for _, tokens in requests)
        if answer["tokens"] != wanted:
            raise TurnError(f"{self.name} made {answer['tokens']} tokens of {wanted}")
        return answer

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            with self.log.open("w") as log:
                self._process = subprocess.Popen(
                    [self.python, "-m", self.module, json.dumps(dict(self.options))],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    cwd=ROOT,
                )
            self.versions = self._read(self._process)
        return self._process

    def _read(self, process: subprocess.Popen[str]) -> Answer:
        assert process.stdout is not None  # noqa: S101 - a pipe, as asked for
        line = process.stdout.readline()
        if not line:
            raise self._failed()
        answer: Answer = json.loads(line)
        return answer

    def _failed(self) -> TurnError:
        return TurnError(f"{self.name} ended: {self.log.read_text(errors='replace')[-_LOG_TAIL:]}")
