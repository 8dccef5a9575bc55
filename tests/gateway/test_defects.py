"""Defects found in other gateways, each kept out by name, over HTTP and a real store (research notes, appendix A).

Those of budgets stand in tests/quotas/test_defects.py, those of the queue in tests/scheduler/queue/test_defects.py; A8
in test_every_limit.py.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.gateway.runtime import fleet as runtime_fleet
from fairlane.quotas import keyspace
from fairlane.quotas.store import Charge
from fairlane.scheduler.protocol.messages import Finished, Outcome, TokenDelta
from fairlane.scheduler.queue.keys import prefix
from fairlane.scheduler.queue.registry import RedisRegistry
from tests.support.gateway.served import ASKED, CHAT, COMPLETIONS, SAID, WAIT_S, Served, serving, settings, until
from tests.support.scheduler.admitted import BEST_EFFORT, PROMISED, WORKERS

pytestmark = pytest.mark.anyio

SHORT = {"model": "tiny", "prompt": [5], "max_tokens": 9}
ENDLESS = {"model": "tiny", "prompt": [5], "ignore_eos": True}


@pytest.fixture
async def served(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(runtime_fleet, "KEPT_LEASES", 0.0)  # else a record stays for more than a minute
    monkeypatch.setattr(runtime_fleet, "KEPT_MORE_S", 0.0)
    async with serving(settings(valkey_url, section={"quantum_tokens": 8})) as opened:
        yield opened


def in_hand(served: Served, count: int) -> bool:
    """The worker holds so many jobs, and each has said something."""
    return len(served.worker.leases) == count and all(served.worker.produced[each] for each in served.worker.leases)


async def test_a5_damage_in_a_stream_is_lost_and_every_answer_is_whole(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """Elsewhere one frame that could not be parsed was a 500; here it would have stopped all streams of a gateway."""
    await served.tenant()
    served.worker.limit = 2
    asking = [asyncio.create_task(served.post(CHAT, {**ASKED, "stream": stream})) for stream in (True, False, True)]
    await until(lambda: in_hand(served, 3))
    events = f"{prefix(served.worker.queue.name)}events:{served.resources.fleet.dispatcher.gateway_id}"
    stranger = Finished(job_id="nobody", epoch=1, outcome=Outcome.FINISHED, worker_id="ghost")
    off = TokenDelta(job_id=served.worker.seen[0].job.job_id, epoch=1, choice=7, first_index=0, token_ids=(1,))
    damage = [b"", b"{not msgpack", b"\xc1", b"\x91\x81\xa4type\xa1\xff", b"\x93\xc0\x01\xc2", b"\xdd\xff\xff\xff\xff"]

    for blob in [*damage, msgspec.msgpack.encode([{"type": "later"}, stranger, off])]:
        await served.store.xadd(events, {"0": blob})
    served.worker.limit = None

    answers = await asyncio.gather(*asking)
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert answers[1].json()["choices"][0]["message"]["content"] == SAID
    for answer in (answers[0], answers[2]):
        frames = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        assert frames.pop() == "[DONE]"
        assert "".join(json.loads(frame)["choices"][0]["delta"].get("content") or "" for frame in frames) == SAID
    said = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert 0 < len(said) <= len(damage) + 3


async def test_a13_a_queued_client_that_leaves_frees_its_place_at_once(served: Served) -> None:
    """Elsewhere it kept it until its timeout."""
    await served.tenant(limits={"queued_requests": 1, "concurrent_requests": 1})
    served.worker.taking = False
    gone = asyncio.create_task(served.post(CHAT, ASKED))
    await until(lambda: any(job.message for job in served.resources.fleet.dispatcher.jobs.values()))

    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await served.landed()
    waiting = await served.worker.queue.waiting("acme")
    next_one = asyncio.create_task(served.post(CHAT, ASKED))
    await until(lambda: bool(served.resources.fleet.dispatcher.jobs))
    served.worker.taking = True

    assert waiting == 0
    assert (await next_one).status_code == 200
    assert len(served.worker.seen) == 1


def test_a13_tenants_in_metrics_are_bounded() -> None:
    """Elsewhere a cap was documented and not enforced."""
    telemetry = Telemetry(max_tenants=3)

    for number in range(1_000):
        telemetry.charged(f"t{number}", "latency", Charge(prompt_tokens=1, output_tokens=2, outcome="finished"))

    text = telemetry.exposition().decode()
    tenants = {line.split('tenant="')[1].split('"')[0] for line in text.splitlines() if 'tenant="' in line}
    assert tenants == {"t0", "t1", "t2", "other"}
    assert 'tokens_total{kind="output",lane="latency",tenant="other"} 1994' in text.replace(".0", "")


LONG = {**ASKED, "messages": [{"role": "user", "content": "x" * 10_000}]}
REFUSED: list[tuple[str, str, Any, dict[str, str], int]] = [
    ("POST", CHAT, b"{not json", {}, 400),
    ("POST", CHAT, {**ASKED, "messages": []}, {}, 400),
    ("POST", CHAT, ASKED, {"authorization": "Bearer nobody"}, 401),
    ("POST", CHAT, ASKED, {"x-fairlane-lane": "throughput"}, 403),
    ("POST", CHAT, {**ASKED, "model": "nobody"}, {}, 404),
    ("GET", CHAT, None, {}, 405),
    ("POST", CHAT, LONG, {}, 400),
    ("POST", CHAT, {**LONG, "stream": True}, {}, 400),
    ("POST", COMPLETIONS, SHORT, {"x-fairlane-deadline-ms": "0"}, 400),
    ("POST", COMPLETIONS, SHORT, {}, 429),
    ("POST", COMPLETIONS, {**SHORT, "stream": True}, {}, 429),
    ("GET", "/v1/nothing", None, {}, 404),
    ("GET", "/admin/v1/tenants", None, {}, 401),
]


async def test_a14_every_refusal_is_json_and_says_whether_to_retry(served: Served) -> None:
    """Elsewhere the body of a refusal was plain text."""
    await served.tenant(lanes=["latency"], limits={"requests_per_minute": 1, "max_output_tokens": 1_000})
    assert (await served.post(COMPLETIONS, SHORT)).status_code == 200

    for method, path, body, headers, status in REFUSED:
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        given = {"authorization": f"Bearer {served.keys['acme']}", **headers}
        async with served.http as client:
            answer = await client.request(method, path, headers=given, **content)

        case = (method, path, status)
        assert (method, path, answer.status_code) == case
        assert answer.headers["content-type"] == "application/json", case
        assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}, case
        retry = answer.headers.get("retry-after"), answer.headers.get("x-should-retry")
        assert (int(retry[0] or 0) >= 1) if status == 429 else retry == (None, "false"), case


async def test_a14_a_worker_that_has_stopped_reporting_holds_nobody_up(served: Served) -> None:
    """Elsewhere one report older than 200 ms made the whole pool count as full, and nothing was sent to anybody."""
    await served.tenant()
    [known] = served.resources.fleet.cache.workers
    stale = {"worker_id": "stale", "blocks_free": 0, "waiting": {"latency": 1_000}, "step_ms": 60_000.0}
    await RedisRegistry(served.store).beat(msgspec.structs.replace(known, **stale), 60_000)
    await until(lambda: len(served.resources.fleet.cache.workers) == 2)

    answers = await asyncio.gather(*(served.post(CHAT, ASKED) for _ in range(8)))

    assert [answer.status_code for answer in answers] == [200] * 8
    assert {lease.job.job_id for lease in served.worker.seen} == set(served.worker.produced)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/fine_tuning/jobs"), ("GET", "/v1/fine_tuning/jobs"), ("POST", "/v1/uploads")]
)
async def test_a15_what_is_not_there_is_404_and_no_pretence(served: Served, method: str, path: str) -> None:
    """Elsewhere a job slept for a second and was complete, with an output that nobody had made."""
    await served.tenant()

    async with served.http as client:
        answer = await client.request(
            method, path, json={"input_file_id": "f"}, headers={"authorization": f"Bearer {served.keys['acme']}"}
        )

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_a16_clients_that_leave_in_every_state_leave_no_state(served: Served) -> None:
    """Elsewhere what was abandoned stayed in flight for good, and held its program's fair share down."""
    await served.tenant(limits={"concurrent_requests": 9, "queued_requests": 9, "tokens_per_minute": 1_000_000})
    await served.tenant("paced", limits={"tokens_per_minute": 16})
    worker, dispatcher = served.worker, served.resources.fleet.dispatcher

    worker.taking = False
    queued = await asked(served, "acme", stream=False), await asked(served, "acme", stream=True)
    await until(lambda: sum(job.message is not None for job in dispatcher.jobs.values()) == 2)
    await leave(served, *queued)

    worker.taking, worker.limit = True, 0
    silent = await asked(served, "acme", stream=False), await asked(served, "acme", stream=True)
    await until(lambda: len(worker.leases) == 2)
    await leave(served, *silent)

    worker.limit = 5
    running = await asked(served, "acme", stream=False), await asked(served, "acme", stream=True)
    await until(lambda: len(worker.leases) == 2 and all(len(worker.produced[each]) == 5 for each in worker.leases))
    await leave(served, *running)

    worker.limit = None
    paused = await asked(served, "paced", stream=True)
    await served.paused("paced")
    await leave(served, paused)

    assert await left_behind(served) == {}
    door = served.resources.fleet.open_requests.at(worker.queue.name)
    door.look(WORKERS, served.resources.fleet.open_requests.now_ms)
    assert [door.ledger.at(level).loads for level in (PROMISED, BEST_EFFORT)] == [0, 0]
    assert (await served.post(COMPLETIONS, SHORT)).status_code == 200


async def asked(served: Served, tenant: str, *, stream: bool) -> "asyncio.Task[Any]":
    return asyncio.create_task(served.post(COMPLETIONS, {**ENDLESS, "stream": stream}, tenant=tenant))


async def leave(served: Served, *clients: "asyncio.Task[Any]") -> None:
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    async with asyncio.timeout(WAIT_S):
        await served.landed()


async def left_behind(served: Served) -> dict[str, Any]:
    """What the store still knows of requests: places, jobs, leases, and what budgets count as held."""
    found: dict[str, Any] = {}
    async with asyncio.timeout(WAIT_S):
        while await jobs(served):  # noqa: ASYNC110 - polled: a gateway forgets them within a second
            await asyncio.sleep(0.02)
    for tenant in served.keys:
        for status in await served.resources.accounts.quotas.statuses(tenant, tenant):
            if status.reserved or (status.name == "concurrent_requests" and status.used):
                found[f"{tenant} {status.name}"] = status
        root = keyspace.of_root(tenant)
        for key in ("leases", f"paused:tenant:{tenant}"):
            if await served.store.exists(root + key):
                found[key] = await served.store.type(root + key)
        if waiting := await served.worker.queue.waiting(tenant):
            found[f"{tenant} waits"] = waiting
    return found


async def jobs(served: Served) -> list[bytes]:
    """Keys of single jobs, in any queue."""
    return [key async for key in served.store.scan_iter(f"{prefix(served.worker.queue.name)}job:*")]
