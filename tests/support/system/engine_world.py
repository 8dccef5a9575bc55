"""Two gateways, two lease holders without torch, a store, and the engines before which these stand: all of them
processes of their own. The engines are stand-ins of vLLM, or vLLM itself where its Python is named.
"""

import asyncio
import contextlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from tests.support.ports import free_port
from tests.support.system.chaos import READY_S, Process, World
from tests.support.vllm import START_LIMIT_S, environ, server_command
from tests.support.worker.vllm_stand_in import MODEL

_OPEN = re.compile(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} ([\d.]+)", re.MULTILINE)


@dataclass
class Engine(Process):
    """A server whose own children die with it."""

    url: str = ""

    def kill(self) -> None:
        children: list[psutil.Process] = []
        if self.running is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                children = psutil.Process(self.running.pid).children(recursive=True)
        super().kill()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


@dataclass
class EngineWorld(World):
    """All of them. Use it as a context; `step_s` is that of the stand-ins."""

    vllm: str = ""
    """Python of an environment that has it; without one the engines are stand-ins."""
    model: Path = Path()
    """A directory: what vLLM serves; a stand-in's workers read its tokenizer."""
    slots: int = 8
    """Requests that an engine computes at a time."""
    count: int = 2
    """Of engines: one for each lease holder, or one for both."""
    engines: list[Engine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.worker = ("-m", "fairlane.worker")
        super().__post_init__()
        for number in range(self.count):
            self.engines.append(self._engine(number))
        for number, worker in enumerate(self.workers):
            told = {
                "MODEL": str(self.model),
                "WORKER__ENGINE": "vllm",
                "WORKER__ENGINE_URL": self.engines[number % self.count].url,
                "WORKER__MAX_SEQUENCES": str(self.slots * self.count // len(self.workers)),
            }
            worker.environ = {**worker.environ, **{f"FAIRLANE_{name}": value for name, value in told.items()}}

    def _engine(self, number: int) -> Engine:
        port, log = free_port(), self.directory / f"engine{number}.log"
        url = f"http://127.0.0.1:{port}"
        if self.vllm:
            command = server_command(self.model, self.model_name, port, slots=self.slots)
            command += ["--max-model-len", "2048"]
            return Engine(command, environ(), log, python=self.vllm, url=url)
        figures = str(port), str(self.step_s), str(self.slots)
        return Engine(["-m", "tests.support.worker.vllm_stand_in", *figures], dict(os.environ), log, url=url)

    @property
    def model_name(self) -> str:
        """That the engines serve by."""
        return self.model.name if self.vllm else MODEL

    def __enter__(self) -> "EngineWorld":
        for engine in self.engines:
            engine.start()
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for engine in self.engines:
            engine.kill()

    async def ready(self) -> None:
        """Until all of them serve. Where one does not, the logs say what it did instead."""
        try:
            await self._ready()
        except TimeoutError:
            logs = (path for path in sorted(self.directory.glob("*.log")) if path.name != "store.log")
            tails = [f"{path.name}: {path.read_text(errors='replace')[-1_500:]}" for path in logs]
            raise AssertionError("\n".join(["not all of them serve:", *tails])) from None

    async def _ready(self) -> None:
        async with httpx.AsyncClient(timeout=5.0) as client, asyncio.timeout(START_LIMIT_S):
            for engine in self.engines:
                while True:
                    with contextlib.suppress(httpx.TransportError):
                        if (await client.get(f"{engine.url}/health")).is_success:
                            break
                    assert engine.running is not None
                    assert engine.running.poll() is None, engine.log.read_text()[-3000:]
                    await asyncio.sleep(0.1)
        async with asyncio.timeout(READY_S):
            await super().ready()
            while not await self._workers_serve():
                for worker in self.workers:
                    assert worker.running is not None
                    assert worker.running.poll() is None, worker.log.read_text()[-3000:]
                await asyncio.sleep(0.1)

    async def _workers_serve(self) -> bool:
        known = (await self.admin("GET", "/workers"))["data"]
        serving = [each["id"] for each in known if not each["draining"]]
        pids = [each.running.pid for each in self.workers if each.running is not None]
        return all(any(f"-{pid}-" in name for name in serving) for pid in pids)

    async def engines_idle(self) -> None:
        """Until no engine has a request any more."""
        async with httpx.AsyncClient(timeout=5.0) as client, asyncio.timeout(READY_S):
            for engine in self.engines:
                while _open_requests((await client.get(f"{engine.url}/metrics")).text):  # noqa: ASYNC110 - polled
                    await asyncio.sleep(0.1)


def _open_requests(metrics: str) -> float:
    return sum(map(float, _OPEN.findall(metrics)))
