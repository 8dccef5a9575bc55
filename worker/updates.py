"""What the engine thread tells the event loop after each batch of commands and each step, and what that means."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from fairlane.scheduler.planner.steps import Capacity, Ended
from fairlane.scheduler.protocol.messages import Lease
from fairlane.scheduler.queue.types import Publication
from fairlane.worker.engine.engine import StepReport

Parts = Mapping[str, Sequence[Publication]]
"""Publications, by the gateway they go to."""


class LaneTokens(NamedTuple):
    """Tokens of one lane in one step."""

    prefill: int = 0
    """Tokens of rows that compute more than one; recomputed ones too."""
    output: int = 0


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """How full the engine is: sequences by lane, and what both pools have free."""

    running: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    preempted: dict[str, int] = field(default_factory=dict)
    blocks_free: int = 0
    blocks_cached: int = 0
    """Of these, what keeps a prefix for whoever asks for it."""
    host_slots_free: int = 0


class Left(NamedTuple):
    """A job that is here no longer, of which nothing is to be said."""

    job_id: str


Change = Lease | Ended | Left
"""What a command has done to a job."""


class Turn(NamedTuple):
    """What the engine did, as its thread tells it; `Jobs` makes a report of it, on the event loop."""

    obeyed: int
    """See `Report`, as of those below."""
    jobs: int
    capacity: Capacity
    load: WorkerLoad
    changes: Sequence[Change] = ()
    """In order, before the step."""
    step: StepReport | None = None
    audited: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """The engine after it has obeyed commands, or after a step."""

    obeyed: int
    """Commands obeyed since the start."""
    parts: Parts
    capacity: Capacity
    jobs: int
    """Jobs still in hand."""
    load: WorkerLoad
    step: StepReport | None = None
    tokens: Mapping[str, LaneTokens] = field(default_factory=dict)
    """The step's, by lane."""
    audited: bool = False
    """Idle, the engine compared its KV blocks with what jobs hold, and all were accounted for."""

    @property
    def ran(self) -> bool:
        """A step did something."""
        return self.step is not None and not self.step.plan.is_empty


class Observer(Protocol):
    """Who watches the worker at work, on the event loop: metrics, traces, the heartbeat's figures."""

    def took(self, leases: Iterable[Lease]) -> None:
        """Jobs came in."""

    def turned(self, report: Report) -> None:
        """The engine has moved on."""

    def lost(self, job_ids: Iterable[str]) -> None:
        """Jobs left without an end here: refused by the store, or handed back."""
