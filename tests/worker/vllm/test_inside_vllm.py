"""Our lanes inside a real vLLM."""

import asyncio
import functools
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from fairlane.scheduler.protocol.engine_priority import encode
from tests.support.vllm import PYTHON, SLOTS, SMALL_BLOCKS, START_LIMIT_S, Vllm, environ, needs_vllm

ROOT = Path(__file__).parents[3]
SCENARIOS = 22
FLOOD, PEOPLE = 40, 6
FLOOD_TOKENS, TOKENS = 300, 12
VOCABULARY = 997
NEAR_TIE = 1e-3
"""Of two log probabilities: which of them wins may depend on what else is in the batch."""

pytestmark = [pytest.mark.slow, needs_vllm]


@functools.cache
def stepped() -> dict[str, str | None]:
    """What went wrong in each scenario of `scenarios.py`."""
    command = [PYTHON, "-m", "tests.worker.vllm.scenarios"]
    known = environ(PYTHONPATH=str(ROOT))
    done = subprocess.run(command, env=known, cwd=ROOT, stdout=subprocess.PIPE, timeout=START_LIMIT_S, check=True)
    told = [json.loads(line) for line in done.stdout.decode().splitlines() if line.startswith("{")]
    return {one["scenario"]: one["wrong"] for one in told}


def test_the_real_scheduler_keeps_to_every_scenario() -> None:
    found = stepped()

    assert len(found) == SCENARIOS
    assert not {name: wrong for name, wrong in found.items() if wrong}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights; the next token depends on all before it, so a gap or a repeat shows in all that follows."""
    directory = tmp_path_factory.mktemp("model")
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2_048,
        initializer_range=0.5,
        eos_token_id=2,
        bos_token_id=1,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def base_url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """vLLM's own server with LaneScheduler, for as long as the module runs."""
    arguments = ("--skip-tokenizer-init", *SMALL_BLOCKS, "--scheduler-cls", "fairlane.worker.vllm.LaneScheduler")
    variables = {"PYTHONPATH": str(ROOT)}
    with Vllm(tmp_path_factory.mktemp("vllm"), model, arguments=arguments, variables=variables) as started:
        yield started.url
        assert "fault in" not in started.log()


@dataclass
class Stream:
    """One request, and what came of it so far."""

    name: str
    rank: int
    number: int
    tokens: int
    ids: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    """Between the token and the next likely, in log probability."""
    finish: str | None = None
    began: asyncio.Event = field(default_factory=asyncio.Event)

    def body(self) -> dict[str, object]:
        asked = {"max_tokens": self.tokens, "ignore_eos": True, "temperature": 0.0, "logprobs": 2, "detokenize": False}
        return {
            "request_id": self.name,
            "token_ids": [10 + (self.number * 31 + place * 7) % (VOCABULARY - 10) for place in range(40)],
            "sampling_params": asked,
            "priority": encode(self.rank, time.time() * 1e3 + 60_000.0),
            "stream": True,
        }

    async def run(self, client: httpx.AsyncClient) -> "Stream":
        async with client.stream("POST", "/inference/v1/generate", json=self.body()) as answer:
            assert answer.status_code == httpx.codes.OK, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    self.take(json.loads(line[6:]))
        return self

    def take(self, event: dict[str, list[dict[str, object]]]) -> None:
        for choice in event.get("choices") or []:
            ids, logprobs, finish = choice.get("token_ids"), choice.get("logprobs"), choice.get("finish_reason")
            self.ids += ids if isinstance(ids, list) else []
            if self.ids:
                self.began.set()
            self.finish = str(finish) if finish else self.finish
            content = logprobs.get("content") if isinstance(logprobs, dict) else None
            for one in content or []:
                best = sorted((other["logprob"] for other in one["top_logprobs"]), reverse=True)
                self.margins.append(best[0] - best[1])


def is_the_same(found: Stream, alone: Stream) -> bool:
    """As it was alone, up to a near tie where both went on differently."""
    differ = next((at for at, (a, b) in enumerate(zip(found.ids, alone.ids, strict=True)) if a != b), None)
    return differ is None or alone.margins[differ] < NEAR_TIE


async def alone(client: httpx.AsyncClient, stream: Stream) -> Stream:
    return await Stream(f"{stream.name}-alone", stream.rank, stream.number, stream.tokens).run(client)


async def until_all_slots_are_taken(flood: list[Stream]) -> None:
    waits = [asyncio.ensure_future(stream.began.wait()) for stream in flood]
    for number, begun in enumerate(asyncio.as_completed(waits), 1):
        await begun
        if number == SLOTS:
            break
    for wait in waits:
        wait.cancel()


async def people_beside_a_flood(base_url: str) -> None:
    flood = [Stream(f"flood{number}", 1, number, FLOOD_TOKENS) for number in range(FLOOD)]
    people = [Stream(f"person{number}", 0, FLOOD + number, TOKENS) for number in range(PEOPLE)]
    async with httpx.AsyncClient(base_url=base_url, timeout=600.0, limits=httpx.Limits(max_connections=None)) as client:
        tasks = [asyncio.create_task(stream.run(client)) for stream in flood]
        await until_all_slots_are_taken(flood)
        ended = sum(stream.finish is not None for stream in flood)
        assert ended == 0
        for person in people:
            await person.run(client)
        ended = sum(stream.finish is not None for stream in flood)
        assert ended < SLOTS, f"{ended} of the flood ended before {PEOPLE} people had their answers"
        await asyncio.gather(*tasks)
        everybody = flood + people
        assert [(stream.finish, len(stream.ids)) for stream in everybody] == [
            ("length", one.tokens) for one in everybody
        ]
        references = [await alone(client, stream) for stream in (*flood[:16], *people)]
    compared = [*zip((*flood[:16], *people), references, strict=True)]
    assert all(is_the_same(found, reference) for found, reference in compared)
    assert sum(found.ids == reference.ids for found, reference in compared) > len(compared) // 2


def test_people_do_not_wait_for_a_flood_and_every_stream_is_what_it_is_alone(base_url: str) -> None:
    asyncio.run(people_beside_a_flood(base_url))


async def abort_in_mid_stream(base_url: str) -> None:
    async with httpx.AsyncClient(base_url=base_url, timeout=600.0, limits=httpx.Limits(max_connections=None)) as client:
        flood = [Stream(f"gone{number}", 1, number, FLOOD_TOKENS) for number in range(2 * SLOTS)]
        tasks = [asyncio.create_task(stream.run(client)) for stream in flood]
        await until_all_slots_are_taken(flood)
        person = asyncio.create_task(Stream("stays", 0, 99, TOKENS).run(client))
        names = [stream.name for stream in flood]
        ids = [*names, *(f"generate-tokens-{name}" for name in names)]
        answer = await client.post("/inference/v1/abort_requests", json={"request_ids": ids})
        assert answer.status_code == httpx.codes.OK
        await asyncio.gather(*tasks)
        assert {stream.finish for stream in flood} <= {"abort", "length"}
        assert len((await person).ids) == TOKENS
        assert len((await Stream("after", 1, 98, TOKENS).run(client)).ids) == TOKENS


def test_aborts_reach_running_and_preempted_requests(base_url: str) -> None:
    asyncio.run(abort_in_mid_stream(base_url))
