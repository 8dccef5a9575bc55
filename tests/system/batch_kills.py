"""A batch beside people, during which gateways, workers and the store are killed: each line answered and charged once.

python -m tests.system.batch_kills [--lines 5000] [--kills 24] [--seeds 1 2 3]

Store, two gateways and two workers are processes of their own; the workers run a tiny model of random weights, whose
next token depends on all before it. SIGKILL comes when so many lines have been answered, to a victim drawn at random,
which is started again up to two seconds later. At the end the outputs are compared with the ledger; ends with 1 where
a line has two answers or none, is charged twice or not at all, or the same prompt has two texts.
"""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai
from openai.types import Batch

from tests.support.gateway.batch_files import ENDED, line
from tests.support.system.chaos import Process, Victim, World, kill
from tests.support.system.kills import KillsCase, KillsReport, parser_of, run_all

WITHIN_S = 180.0
BATCH_WITHIN_S = 3_600.0
PROMPTS = 40
"""That differ: lines share them, and so what they are answered."""
MODEL = "tiny"
LIMITS = {"tokens_per_month": 10**9, "tokens_per_day": 10**9, "enqueued_batch_tokens": 10**8}
CLERK, CROWD = "acme", "people"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case(KillsCase):
    """One batch and those who die."""

    lines: int
    kills: int
    tokens: int = 8
    """That each line is answered with."""
    people_per_s: float = 1.0
    longest_away_s: float = 2.0


@dataclass
class Report(KillsReport[Case]):
    """What became of a batch: how people's requests beside it ended (whole, refused, cut), and the lines charged."""

    answered: int = 0
    """Lines."""


async def sure(world: World, call: Callable[[openai.AsyncOpenAI], Awaitable[T]]) -> T:
    """What a call to whichever gateway lives returns."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            for url in world.urls:
                async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=world.key, max_retries=0) as client:
                    with contextlib.suppress(openai.APIConnectionError, openai.InternalServerError, httpx.HTTPError):
                        return await call(client)
            await asyncio.sleep(0.05)


def prompt_of(number: int) -> list[int]:
    """A line's prompt, as token ids of the tiny model."""
    return [3 + number % PROMPTS, 4, 5 + number % 7]


def content(case: Case) -> bytes:
    """The batch's file."""
    return b"".join(
        line(f"line-{number}", prompt=prompt_of(number), max_tokens=case.tokens, ignore_eos=True) + b"\n"
        for number in range(case.lines)
    )


async def run(world: World, case: Case) -> Report:
    """The batch from its file to its end, in a world that is ready."""
    report, began_s = Report(case), time.monotonic()
    keys = {tenant: await world.tenant(tenant, limits=LIMITS) for tenant in (CLERK, CROWD)}
    world.key = keys[CLERK]
    file = await sure(world, lambda client: client.files.create(file=("in.jsonl", content(case)), purpose="batch"))
    batch = await sure(
        world,
        lambda client: client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        ),
    )
    crowd = asyncio.create_task(_crowd(world, keys[CROWD], report))
    try:
        async with asyncio.timeout(BATCH_WITHIN_S):
            await _deaths(world, batch.id, report)
            batch = await _reaches(world, batch.id, case.lines + 1)
    finally:
        crowd.cancel()
        await asyncio.gather(crowd, return_exceptions=True)
    report.took_s = time.monotonic() - began_s
    await world.ready()
    for tenant in (CLERK, CROWD):
        await world.landed(tenant)
    await _judge(world, batch, report)
    return report


async def _deaths(world: World, batch_id: str, report: Report) -> None:
    """One when each of some counts of lines is reached, all drawn at random; each victim in its turn."""
    case, chooser = report.case, world.chooser
    turn = list[Victim]()
    for count in sorted(chooser.randrange(round(0.8 * case.lines)) for _ in range(case.kills)):
        if (await _reaches(world, batch_id, count)).status in ENDED:
            report.faults.append("the batch ended before all had died")
            return
        turn = turn or chooser.sample(world.victims, len(world.victims))
        victim = turn.pop()
        await asyncio.to_thread(kill, victim, chooser.uniform(0.0, case.longest_away_s))
        report.deaths[_kind(world, victim)] += 1


def _kind(world: World, victim: Victim) -> str:
    if not isinstance(victim, Process):
        return "store"
    return "gateway" if victim in world.gateways else "worker"


async def _reaches(world: World, batch_id: str, count: int) -> Batch:
    """The batch once it has ended, or so many lines have."""
    while True:
        batch = await sure(world, lambda client: client.batches.retrieve(batch_id))
        assert batch.request_counts is not None
        done = batch.request_counts.completed + batch.request_counts.failed
        if batch.status in ENDED or done >= count:
            return batch
        await asyncio.sleep(0.05)


async def _crowd(world: World, key: str, report: Report) -> None:
    """People, until cancelled: streams on the latency lane, at random moments and to either gateway."""
    chooser = random.Random(report.case.seed)
    async with asyncio.TaskGroup() as group, httpx.AsyncClient(timeout=WITHIN_S) as client:
        while True:
            await asyncio.sleep(chooser.expovariate(report.case.people_per_s))
            group.create_task(_ask(client, chooser.choice(world.urls), key, report.ends))


async def _ask(client: httpx.AsyncClient, url: str, key: str, ends: Counter[str]) -> None:
    body = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 16, "stream": True, "service_tier": "priority"}
    headers = {"authorization": f"Bearer {key}"}
    end = "cut"
    try:
        async with client.stream("POST", f"{url}/v1/completions", json=body, headers=headers) as answer:
            if answer.status_code != httpx.codes.OK:
                end = "refused"
            async for told in answer.aiter_lines():
                end = "whole" if told == "data: [DONE]" else end
    except httpx.ConnectError:
        end = "refused"
    except httpx.TransportError:
        pass
    ends[end] += 1


async def _judge(world: World, batch: Batch, report: Report) -> None:
    """Compare the outputs with what was asked and with the ledger."""
    case = report.case
    found = await _records(world, batch.output_file_id)
    report.answered = len(found)
    report.expect("status", batch.status, "completed")
    report.expect("lines of the error file", len(await _records(world, batch.error_file_id)), 0)
    assert batch.request_counts is not None
    counts = {"total": case.lines, "completed": case.lines, "failed": 0}
    report.expect("counts", batch.request_counts.to_dict(), counts)
    ids = Counter(each["custom_id"] for each in found)
    report.expect("lines answered twice", sorted(name for name, count in ids.items() if count > 1)[:5], [])
    wanted = {f"line-{number}" for number in range(case.lines)}
    report.expect("lines not answered", sorted(wanted - ids.keys())[:5], [])
    report.expect("lines nobody sent", sorted(ids.keys() - wanted)[:5], [])
    texts: dict[tuple[int, ...], set[str]] = {}
    for each in found:
        number = int(each["custom_id"].removeprefix("line-"))
        texts.setdefault(tuple(prompt_of(number)), set()).add(each["response"]["body"]["choices"][0]["text"])
    report.expect("prompts with several answers", [prompt for prompt, told in texts.items() if len(told) > 1], [])

    usages = [each["response"]["body"]["usage"] for each in found]
    charged = (await world.admin("GET", f"/tenants/{CLERK}/usage"))["total"]
    report.charged = charged["requests"]
    told = {name: sum(usage[name] for usage in usages) for name in ("prompt_tokens", "completion_tokens")}
    report.expect("tokens of an answer", {usage["completion_tokens"] for usage in usages}, {case.tokens})
    report.expect("lines charged", charged["requests"], case.lines)
    report.expect("prompt tokens charged", charged["prompt_tokens"], told["prompt_tokens"])
    report.expect("output tokens charged", charged["output_tokens"], told["completion_tokens"])
    assert batch.usage is not None
    report.expect("the batch's own usage", batch.usage.total_tokens, sum(told.values()))
    limits = (await world.admin("GET", f"/tenants/{CLERK}/quota"))["limits"]
    report.expect("tokens of the month", limits["tokens_per_month"]["used"], sum(told.values()))


async def _records(world: World, file_id: str | None) -> list[dict[str, Any]]:
    """Lines of one of the batch's files."""
    if file_id is None:
        return []
    text = (await sure(world, lambda client: client.files.content(file_id))).text
    return [json.loads(each) for each in text.splitlines()]


def shared(directory: Path, **settings: str) -> dict[str, str]:
    """Settings of gateways whose files stand in one place of this directory."""
    return {
        "GATEWAY__FILES__URL": f"file://{directory / 'shared'}",
        "GATEWAY__FILES__BATCH_LEASE_S": "1",
        **settings,
    }


async def with_engines(directory: Path, case: Case) -> Report:
    """The same with workers that run a model."""
    from tests.support.worker.tiny_model import write_tiny_model  # torch, which the short form does without

    settings = shared(
        directory,
        MODEL=str(write_tiny_model(directory / MODEL)),
        LEASE_S="3",
        WORKER__DTYPE="float32",
        WORKER__THREADS="1",
        WORKER__MAX_SEQUENCES="8",
        WORKER__KV_MEMORY="32MiB",
        WORKER__HOST_KV_MEMORY="8MiB",
        WORKER__MODELS_DIR=str(directory / "models"),
    )
    with World(directory, random.Random(case.seed), settings, worker=("-m", "fairlane.worker")) as world:
        await world.ready()
        return await run(world, case)


COLUMNS: dict[str, Callable[[Report], object]] = {
    "seed": lambda each: each.case.seed,
    "kills: gateways, workers, store": lambda each: (
        f"{each.deaths.total()}: {each.deaths['gateway']}, {each.deaths['worker']}, {each.deaths['store']}"
    ),
    "lines": lambda each: f"{each.case.lines:,}",
    "answered": lambda each: f"{each.answered:,}",
    "charged": lambda each: f"{each.charged:,}",
    "people: whole, cut, refused": lambda each: f"{each.ends['whole']}, {each.ends['cut']}, {each.ends['refused']}",
}


def main() -> int:
    """Run it; 1 where anything is not as it must be."""
    parser = parser_of(__doc__)
    parser.add_argument("--lines", type=int, default=5_000)
    parser.add_argument("--kills", type=int, default=24)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    options = parser.parse_args()
    cases = [Case(lines=options.lines, kills=options.kills, seed=seed) for seed in options.seeds]
    return run_all(cases, with_engines, COLUMNS, options.keep)


if __name__ == "__main__":
    raise SystemExit(main())
