"""`/v1/embeddings` as clients call it: a gateway, and worker processes of an embedder."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest
from tokenizers import Tokenizer

from fairlane.common.child_processes import die_with_parent
from tests.support.gateway.served import CHAT, COMPLETIONS, WAIT_S, Served, error_of, gateway, settings, until
from tests.support.worker.tiny_embedder import LONGEST, WIDTH, reference, write_tiny_embedder

pytestmark = pytest.mark.anyio
MODEL, PATH = "tiny-embedder", "/v1/embeddings"
LEASE_S = 1.0
MOST_INPUTS = 2_048


@contextmanager
def embedder(url: str, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process of it, that runs until the block ends, or until it is killed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")}
    told = {"REDIS_URL": url, "MODEL": str(directory), "LEASE_S": str(LEASE_S), "DATA_DIR": str(directory / "data")}
    told |= {"WORKER__THREADS": "1"}
    environ |= {f"FAIRLANE_{name}": value for name, value in told.items()}
    started = subprocess.Popen([sys.executable, "-m", "fairlane.worker"], env=environ, preexec_fn=die_with_parent())
    try:
        yield started
    finally:
        started.kill()
        started.wait()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_embedder(tmp_path_factory.mktemp("models") / MODEL)


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with gateway(settings(valkey_url, lease_s=LEASE_S)) as opened:
        await opened.tenant(limits={"tokens_per_day": 100_000})
        yield opened


@pytest.fixture(scope="module")
async def standing(file_url: str, directory: Path) -> AsyncIterator[Served]:
    """A gateway and a worker for the tests that only ask."""
    async with gateway(settings(file_url, lease_s=LEASE_S)) as opened:
        with embedder(file_url, directory):
            await ready(opened)
            yield opened


@pytest.fixture
async def asked(standing: Served) -> Served:
    await standing.renew()
    await standing.tenant(limits={"tokens_per_day": 100_000})
    return standing


async def ready(served: Served, count: int = 1) -> None:
    """So many workers are known."""
    async with asyncio.timeout(6 * WAIT_S):
        while len(served.resources.fleet.cache.workers) != count:  # noqa: ASYNC110 - polled: it has no event
            await asyncio.sleep(0.02)


async def ask(served: Served, **body: object) -> httpx.Response:
    return await served.post(PATH, {"model": MODEL, **body})


async def test_the_sdk_gets_the_models_vectors_and_pays_for_the_inputs_alone(asked: Served, directory: Path) -> None:
    texts = ["w1 w2 w3", "w4", "W5 w6 unknown [SEP] w7"]
    async with asked.sdk() as client:
        packed = await client.embeddings.create(model=MODEL, input=texts)
        plain = await client.embeddings.create(model=MODEL, input=texts[0], encoding_format="float")
        ids = Tokenizer.from_file(str(directory / "tokenizer.json")).encode(texts[0]).ids
        by_ids = await client.embeddings.create(model=MODEL, input=[ids])
        with pytest.raises(openai.BadRequestError) as refused:
            await client.embeddings.create(model=MODEL, input="w1", dimensions=WIDTH // 2)
    await asked.landed()
    many = await ask(asked, input=[f"w{number % 60}" for number in range(MOST_INPUTS)])
    await asked.landed()
    limits = await asked.limits()

    assert [vector.index for vector in packed.data] == [0, 1, 2]
    assert [len(vector.embedding) for vector in packed.data] == [WIDTH] * 3
    assert packed.data[0].embedding == pytest.approx(reference(directory, ids), abs=1e-5)
    assert plain.data[0].embedding == pytest.approx(packed.data[0].embedding, abs=1e-5)
    assert by_ids.data[0].embedding == pytest.approx(packed.data[0].embedding, abs=1e-5)
    assert refused.value.param == "dimensions"
    assert many.status_code == 200, many.text[:500]
    assert [vector["index"] for vector in many.json()["data"]] == list(range(MOST_INPUTS))
    paid = packed.usage.prompt_tokens + 2 * len(ids) + 3 * MOST_INPUTS
    assert many.json()["usage"] == {"prompt_tokens": 3 * MOST_INPUTS, "total_tokens": 3 * MOST_INPUTS}
    assert (limits["tokens_per_day"].used, limits["tokens_per_day"].reserved) == (paid, 0)
    assert {output for _, _, output in await asked.ledger()} == {0}


@pytest.mark.thorough
async def test_inputs_of_a_dead_worker_are_computed_by_another(
    served: Served, valkey_url: str, directory: Path
) -> None:
    with embedder(valkey_url, directory) as first:
        await ready(served)
        asking = asyncio.create_task(ask(served, input=[f"w{number % 60}" for number in range(1_500)]))
        await until(lambda: bool(served.resources.fleet.dispatcher.jobs))
        first.kill()
        with embedder(valkey_url, directory):
            answer = await asking
    await served.landed()

    assert answer.status_code == 200, answer.text
    assert len(answer.json()["data"]) == 1_500
    assert (await served.limits())["tokens_per_day"].used == 3 * 1_500


WRONG: list[tuple[dict[str, object], str, str]] = [
    ({"input": " ".join(["w1"] * LONGEST)}, "input", "context_length_exceeded"),
    ({"input": [[1_000]]}, "input", "invalid_request_error"),
    ({"input": ["w1"] * (MOST_INPUTS + 1)}, "input", "invalid_request_error"),
    ({"input": [""]}, "input", "invalid_request_error"),
    ({"input": "w1", "encoding_format": "int8"}, "encoding_format", "invalid_request_error"),
    ({"input": "w1", "stream": True}, "stream", "invalid_request_error"),
]


async def test_what_is_wrong_is_named(asked: Served) -> None:
    answers = [await ask(asked, **body) for body, _, _ in WRONG]
    chat = await asked.post(CHAT, {"model": MODEL, "messages": [{"role": "user", "content": "w1"}]})
    completion = await asked.post(COMPLETIONS, {"model": MODEL, "prompt": "w1"})

    for answer, (body, param, code) in zip(answers, WRONG, strict=True):
        assert error_of(answer) == (400, code), body
        assert answer.json()["error"]["param"] == param, body
    for other in (chat, completion):
        assert error_of(other) == (400, "invalid_request_error")
        assert other.json()["error"]["param"] == "model"
