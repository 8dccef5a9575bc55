"""An engine whose computing a stand-in of vLLM does, stepped by the test's own thread."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.planner.steps import Ended, SeqId
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Event, Lease, TokenDelta
from fairlane.worker.engine.engine import Engine
from fairlane.worker.remote.api import Api, Facts
from fairlane.worker.remote.runner import RemoteRunner
from fairlane.worker.remote.streams import Streams
from fairlane.worker.remote.vllm import VllmApi
from tests.support.worker.vllm_stand_in import VOCABULARY, VllmStandIn

LIMIT_S = 30.0


def facts_of(api: Api) -> Facts:
    """What it finds its server to be; it is closed then."""

    async def found() -> Facts:
        try:
            return await api.facts()
        finally:
            await api.close()

    return asyncio.run(found())


@dataclass
class RemoteClient:
    """One engine before one server."""

    server: VllmStandIn
    max_sequences: int = 8
    blocks: int = 64
    model: str | None = None
    """By its name at the server."""
    api: Api | None = None
    """Speaks to another kind of server than vLLM's."""
    resumes_grammars: bool = False
    facts: Facts | None = None
    """What the server must go on to be."""
    lease_s: float | None = None
    events: list[Event] = field(default_factory=list)
    tokens: dict[SeqId, list[int]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[str, Ended] = field(default_factory=dict)

    def __post_init__(self) -> None:
        api = self.api or VllmApi(self.server.url, None, self.model)
        self.streams = Streams(api, VOCABULARY, facts=self.facts, lease_s=self.lease_s)
        self.costs = CostModel()
        planner = Planner(
            lanes=DEFAULT_LANES,
            block_size=4,
            blocks=self.blocks,
            host_slots=0,
            max_sequences=self.max_sequences,
            max_step_tokens=64,
            costs=self.costs,
            holds_decodes=False,
        )
        runner = RemoteRunner(
            self.streams,
            DEFAULT_LANES,
            "test",
            max_sequences=self.max_sequences,
            resumes_grammars=self.resumes_grammars,
        )
        self.engine = Engine(planner, runner)

    def add(self, *leases: Lease) -> None:
        for lease in leases:
            for number, generated in enumerate(lease.generated):
                self.tokens[SeqId(lease.job.job_id, number)] = [*generated]
            self.engine.add(lease, self.now_ms)

    def step(self) -> None:
        report = self.engine.step(self.now_ms)
        self.events += report.events
        for event in report.events:
            if isinstance(event, TokenDelta):
                told = self.tokens[SeqId(event.job_id, event.choice)]
                assert event.first_index == len(told)
                told += event.token_ids
        self.ends |= {ended.job_id: ended for ended in report.outcome.ended}

    def until(self, holds: Callable[[], object]) -> None:
        end_s = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < end_s, "it never came to that"
            self.step()

    def run(self) -> None:
        """To the end of every job."""
        self.until(lambda: not self.engine.has_work)
        self.engine.planner.check_integrity()

    @property
    def now_ms(self) -> float:
        return time.monotonic() * 1e3


def facts(server: VllmStandIn, model: str | None = None) -> Facts:
    """What it says of itself, and of the model that it has by that name."""
    return facts_of(VllmApi(server.url, None, model))


@contextmanager
def remote_client(
    server: VllmStandIn,
    *,
    max_sequences: int = 8,
    blocks: int = 64,
    model: str | None = None,
    api: Api | None = None,
    resumes_grammars: bool = False,
    facts: Facts | None = None,
    lease_s: float | None = None,
) -> Iterator[RemoteClient]:
    client = RemoteClient(server, max_sequences, blocks, model, api, resumes_grammars, facts, lease_s)
    try:
        yield client
    finally:
        client.streams.close()
