"""One gateway before workers of several engines: our own, and those of a server with a model and an adapter over it."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fairlane.cli.embedded_store import EmbeddedStore
from tests.support.gateway.served import CHAT, COMPLETIONS, Served, error_of, gateway, settings, until
from tests.support.ports import free_port
from tests.support.worker.fleet import Process
from tests.support.worker.tiny_model import write_tiny_model
from tests.support.worker.vllm_stand_in import VllmStandIn, continuation

pytestmark = [pytest.mark.system, pytest.mark.anyio]
OWN, SERVED, ADAPTER = "tiny", "sum", "polite"
PROMPT = [5, 6, 7, 8, 9]
TOKENS = 7
COST = len(PROMPT) + TOKENS


@contextmanager
def worker(url: str, directory: Path, **chosen: str) -> Iterator[Process]:
    """A worker process with these settings, by their names without the prefix."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRLANE_", "OTEL_"))}
    known = {"REDIS_URL": url, "LEASE_S": "5", "WORKER__METRICS_PORT": str(free_port()), "WORKER__THREADS": "1"}
    environ = kept | {f"FAIRLANE_{name}": value for name, value in {**known, **chosen}.items()}
    child = subprocess.Popen(
        [sys.executable, "-m", "fairlane.worker"], env=environ, cwd=directory, stderr=subprocess.PIPE, text=True
    )
    process = Process(child, int(environ["FAIRLANE_WORKER__METRICS_PORT"]))
    try:
        yield process
    finally:
        child.terminate()
        process.ended()
        assert child.stderr is not None
        child.stderr.close()


@pytest.fixture(scope="module")
def store_of_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a store with three workers at it, each for a model of its own."""
    model = write_tiny_model(tmp_path_factory.mktemp("models") / OWN)
    store = EmbeddedStore(tmp_path_factory.mktemp("store"))
    store.start()
    with ExitStack() as stack:
        stack.callback(store.stop)
        engine = stack.enter_context(VllmStandIn(root=str(model), adapters=[ADAPTER]))
        pools = {"WORKER__KV_MEMORY": "4MiB", "WORKER__HOST_KV_MEMORY": "1MiB", "WORKER__DEVICE": "cpu"}
        remote = {"WORKER__ENGINE": "vllm", "WORKER__ENGINE_URL": engine.url, "WORKER__MAX_SEQUENCES": "4"}
        chosen = ({"MODEL": str(model), **pools}, remote, {**remote, "WORKER__ENGINE_MODEL": ADAPTER})
        for process in [stack.enter_context(worker(store.url, model, **each)) for each in chosen]:
            process.logged("serves")
        yield store.url


@pytest.fixture
async def served(store_of_workers: str) -> AsyncIterator[Served]:
    """A gateway that knows the workers."""
    async with gateway(settings(store_of_workers)) as opened:
        found = opened.resources.fleet.cache
        await until(lambda: {name for name, each in found.models.items() if each.is_served} == {OWN, SERVED, ADAPTER})
        yield opened


def asked(model: str, **more: object) -> dict[str, object]:
    return {"model": model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, **more}


def spelled(token_ids: list[int]) -> str:
    return "".join(f"w{token}" for token in token_ids)


async def test_each_model_is_listed_once_and_answered_by_its_own_engine(served: Served) -> None:
    await served.tenant("all")
    listed = await served.get("/v1/models", tenant="all")
    names = [OWN, SERVED, ADAPTER]
    came = await asyncio.gather(*(served.post(COMPLETIONS, asked(name), tenant="all") for name in names))
    answers = dict(zip(names, came, strict=True))
    again = await served.post(COMPLETIONS, asked(OWN), tenant="all")

    assert sorted(each["id"] for each in listed.json()["data"]) == sorted(names)
    assert {name: answer.status_code for name, answer in answers.items()} == dict.fromkeys(names, 200)
    assert {name: answer.json()["model"] for name, answer in answers.items()} == {name: name for name in names}
    texts = {name: answer.json()["choices"][0]["text"] for name, answer in answers.items()}
    assert texts[SERVED] == spelled(continuation(PROMPT, TOKENS))
    assert texts[ADAPTER] == spelled(continuation(PROMPT, TOKENS, 1))
    assert texts[OWN] == again.json()["choices"][0]["text"]
    assert len({*texts.values()}) == 3


async def test_a_tenant_s_budget_counts_what_every_engine_has_told(served: Served) -> None:
    await served.tenant("budget", limits={"tokens_per_day": 3 * COST})
    for name in (OWN, SERVED, ADAPTER):
        answer = await served.post(COMPLETIONS, asked(name), tenant="budget")
        assert answer.json()["usage"]["total_tokens"] == COST
    await served.landed()
    refused = [
        error_of(await served.post(COMPLETIONS, asked(name), tenant="budget")) for name in (OWN, SERVED, ADAPTER)
    ]

    assert refused == [(429, "insufficient_quota")] * 3
    assert (await served.limits("budget"))["tokens_per_day"].used == 3 * COST
    assert await served.ledger("budget") == [("finished", len(PROMPT), TOKENS)] * 3


async def test_a_limit_of_one_model_leaves_the_others_alone(served: Served) -> None:
    await served.tenant("limited", limits_by=[{"model": ADAPTER, "limits": {"tokens_per_day": COST}}])
    statuses = [
        [(await served.post(COMPLETIONS, asked(name), tenant="limited")).status_code for _ in range(2)]
        for name in (OWN, SERVED, ADAPTER)
    ]

    assert statuses == [[200, 200], [200, 200], [200, 429]]


async def test_a_tenant_of_some_models_sees_and_has_these_alone(served: Served) -> None:
    await served.tenant("some", models=[OWN, ADAPTER])
    listed = await served.get("/v1/models", tenant="some")
    refused = await served.post(COMPLETIONS, asked(SERVED), tenant="some")

    assert sorted(each["id"] for each in listed.json()["data"]) == sorted([OWN, ADAPTER])
    assert error_of(refused) == (403, "model_not_allowed")


async def test_a_model_that_no_worker_has_is_not_found(served: Served) -> None:
    await served.tenant("none")

    assert error_of(await served.post(COMPLETIONS, asked("rude"), tenant="none")) == (404, "model_not_found")


async def test_a_model_without_a_chat_template_takes_no_chat_and_says_why(served: Served) -> None:
    await served.tenant("chats")
    for name in (OWN, SERVED, ADAPTER):
        answer = await served.post(
            CHAT, {"model": name, "messages": [{"role": "user", "content": "w5"}]}, tenant="chats"
        )
        assert answer.status_code == 400
        assert "has no usable chat template" in answer.json()["error"]["message"]
