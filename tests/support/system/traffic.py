"""Streams of several tenants and models through gateways whose store or code changes meanwhile, and what they got."""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType

import httpx

from fairlane.quotas.ledger import Ledger
from fairlane.quotas.redis_store import RedisQuotaStore
from tests.support.ports import free_port
from tests.support.store import topology
from tests.support.system.chaos import Process
from tests.support.system.harness import ADMIN_KEY

HERE = Path(__file__).parents[3]
WORKER = Path(__file__).with_name("mock_worker.py")
LEASE_S = 2.0
STEP_S = 0.03
QUANTUM = 64
SHORT, LONG = 10, 300
WAIT_S = 60.0
# Of a client whose request was refused.
PAUSE_S = 0.05


@dataclass
class Answer:
    """One streamed request, and what its client received."""

    tenant: str
    model: str
    max_tokens: int
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float = 0.0
    # Its last component is the reservation's id.
    id: str = ""
    text: str = ""
    tokens: int = 0
    arrivals_s: list[float] = field(default_factory=list)
    # `whole`, or the code of its error; empty if it ended without either.
    end: str = ""

    def note(self, line: str) -> None:
        """Take in one line of the response."""
        said = line.removeprefix("data: ")
        if said == "[DONE]":
            self.end = self.end or "whole"
        if not said.startswith("{"):
            return
        chunk = json.loads(said)
        if error := chunk.get("error"):
            self.end = str(error["code"])
        self.id = chunk.get("id", self.id)
        for choice in chunk.get("choices", ()):
            self.text += choice["text"]
        if usage := chunk.get("usage"):
            if usage["completion_tokens"] > self.tokens:
                self.arrivals_s.append(time.monotonic())
            self.tokens = usage["completion_tokens"]

    @property
    def is_whole(self) -> bool:
        return self.end == "whole"

    @property
    def booking(self) -> str:
        return self.id.partition("-")[2]


class Fleet:
    """Gateways and workers as processes, each with the code of a checkout. Use it as a context."""

    def __init__(self, directory: Path, url: str, **settings: str) -> None:
        """`url` is the store's; `settings` are those of all gateways, by their names without `FAIRLANE_`."""
        self._directory, self.url = directory, url
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")} | {
            "FAIRLANE_REDIS_URL": url,
            "FAIRLANE_ADMIN_KEY": ADMIN_KEY,
            "FAIRLANE_LEASE_S": str(LEASE_S),
            "FAIRLANE_GATEWAY__RESERVATION_LEASE_S": "5",
            "FAIRLANE_GATEWAY__QUANTUM_TOKENS": str(QUANTUM),
            "FAIRLANE_GATEWAY__STORE_TIMEOUT_S": "1",
            **{f"FAIRLANE_{name}": value for name, value in settings.items()},
        }
        self._numbers = count()
        self._processes: list[Process] = []
        self.keys: dict[str, str] = {}
        # Of the gateways that take requests.
        self.urls: list[str] = []

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()

    async def gateway(self, checkout: Path = HERE) -> tuple[Process, str]:
        """Start a gateway; return it and its URL once it is ready."""
        url = f"http://127.0.0.1:{(port := free_port())}"
        data = str(self._directory / f"data{port}")
        process = self._start("gateway", ["-m", "fairlane.gateway"], checkout, PORT=str(port), DATA_DIR=data)
        async with httpx.AsyncClient() as client, asyncio.timeout(WAIT_S):
            while True:
                try:
                    if (await client.get(f"{url}/readyz")).status_code == httpx.codes.OK:
                        return process, url
                except httpx.TransportError:
                    assert process.running is not None
                    assert process.running.poll() is None, self.log(process)
                await asyncio.sleep(0.05)

    def worker(self, model: str, checkout: Path = HERE) -> Process:
        """Start a worker of a model."""
        return self._start("worker", ["-P", str(WORKER), self.url, str(LEASE_S), model, str(STEP_S)], checkout)

    def _start(self, kind: str, command: list[str], checkout: Path, **settings: str) -> Process:
        environ = {**self._environ, **{f"FAIRLANE_{name}": value for name, value in settings.items()}}
        environ["PYTHONPATH"] = str(checkout)
        log = self._directory / f"{kind}{next(self._numbers)}.log"
        process = Process(command, environ, log, python=sys.executable, directory=checkout)
        self._processes.append(process)
        process.start()
        return process

    @staticmethod
    def log(process: Process) -> str:
        return process.log.read_text(errors="replace")[-2_000:]

    async def tenant(self, name: str) -> None:
        """Make a tenant with a key and a daily budget."""
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        async with httpx.AsyncClient(base_url=f"{self.urls[0]}/admin/v1", headers=headers, timeout=WAIT_S) as client:
            budget = {"tokens_per_day": 10**7}
            (await client.post("/tenants", json={"id": name, "limits": budget})).raise_for_status()
            made = (await client.post(f"/tenants/{name}/keys", json={"name": "test"})).raise_for_status()
        self.keys[name] = made.json()["key"]

    async def ask(self, tenant: str, model: str, max_tokens: int, url: str = "") -> Answer:
        """Stream one request from a gateway, the newest if none is given."""
        answer = Answer(tenant, model, max_tokens)
        body = {
            "model": model,
            "prompt": "Go on",
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        headers = {"Authorization": f"Bearer {self.keys[tenant]}"}
        async with (
            httpx.AsyncClient(base_url=url or self.urls[-1], timeout=WAIT_S) as client,
            client.stream("POST", "/v1/completions", json=body, headers=headers) as response,
        ):
            async for line in response.aiter_lines():
                answer.note(line)
        answer.ended_s = time.monotonic()
        return answer

    async def keep_asking(self, tenant: str, model: str, ended: asyncio.Event) -> list[Answer]:
        """Send short requests one after the other until the end."""
        answers = []
        while not ended.is_set():
            answers.append(await self.ask(tenant, model, SHORT))
            if not answers[-1].is_whole:
                await asyncio.sleep(PAUSE_S)
        return answers

    async def check(self, answers: Sequence[Answer]) -> None:
        """Fail unless each request has ended, whole ones are alike, and each was charged once for what it delivered."""
        endless = [each for each in answers if not each.end]
        assert not endless, endless
        for length in {each.max_tokens for each in answers}:
            assert len({each.text for each in answers if each.is_whole and each.max_tokens == length}) <= 1
        async with topology.client(self.url) as client:
            quotas = RedisQuotaStore(client)
            for tenant in self.keys:
                (status,) = await quotas.statuses(tenant, tenant)
                expires_s = time.monotonic() + WAIT_S
                while status.reserved:
                    assert time.monotonic() < expires_s
                    await asyncio.sleep(0.1)
                    (status,) = await quotas.statuses(tenant, tenant)
                entries = await Ledger(client).entries(tenant, tenant, limit=10_000)
                assert max(Counter(each.reservation_id for each in entries).values()) == 1
                charged = {each.reservation_id: each.output_tokens for each in entries}
                mine = [each for each in answers if each.tenant == tenant]
                delivered = {each.booking: each.tokens for each in mine}
                assert {name: count for name, count in charged.items() if count > delivered.get(name, 0)} == {}
                wrong = [each for each in mine if each.is_whole and charged.get(each.booking) != each.tokens]
                assert not wrong, [(each.booking, each.end, each.tokens, charged.get(each.booking)) for each in wrong]
                assert status.used == sum(each.prompt_tokens + each.output_tokens for each in entries)
