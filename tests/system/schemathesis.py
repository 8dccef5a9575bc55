"""Schemathesis over the whole document, tenants' and operators' calls: what it makes of each schema, sent to a gateway.

python -m tests.system.schemathesis [--cases 400] [--minutes 30] [--seed 1]

Every call runs with the key that it needs, against real tenants, files, batches and responses and models that are
served, so that it comes to what lies behind the checks: one of each kind, and one that takes images. Failed is a 5xx
(but a deadline that the caller stated), a status, header or media type that the document does not name, an answer that
its schema does not fit, a wrong request that was accepted. Ends with 1 where anything did. Rules between two fields
(`top_logprobs` needs `logprobs`) no schema says: that a request is refused for one is no failure.
"""

import argparse
import asyncio
import copy
import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.gateway.config import GatewaySettings
from fairlane.gateway.control.openapi.document import document
from fairlane.gateway.dialects.openai.field_types import LENIENT
from fairlane.scheduler.protocol.media import MediaForm
from tests.gateway.media.test_conversations import AFTER, BEFORE, Engine
from tests.gateway.pooling.pooling_worker import PoolingWorker, embedding_card, scoring_card
from tests.support.gateway.batch_files import begun, folder_settings, lines
from tests.support.gateway.cards import byte_level_card
from tests.support.gateway.hand_worker import HandWorker
from tests.support.gateway.served import ADMIN_KEY, Served, serving, until
from tests.support.tasks import end

TOOL = Path(sys.prefix) / "tools" / "bin" / "schemathesis"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "negative_data_rejection",
)
WHO = ("tenant", "admin", "anyone")
TENANTS = tuple(f"tenant-{number}" for number in range(40))
"""Many: some calls end them."""
FILES = 12
"""Of the tenant that asks, and as many batches and responses: some calls delete them."""
Names = Mapping[str, Sequence[str]]
"""What stands in the place of a path's parameter, or of a body's field."""
CONFIG = """\
[checks.negative_data_rejection]
expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "428", "429", "5xx"]
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 504]  # 504: the caller's own deadline, which may be a millisecond
"""
_CASES = re.compile(r"(\d+) generated")
_SILENT_S = 120.0
"""Beyond the time that it was given, for what it says at its end."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one run found."""

    who: str
    cases: int
    passed: bool
    said: str


def narrowed(whole: dict[str, Any], names: Names) -> dict[str, Any]:
    """The document, with names of what exists in the places where any name could stand."""
    narrow = copy.deepcopy(whole)
    for body in _bodies(narrow):
        for field in body["properties"].keys() & _NAMED_IN_BODIES:
            body["properties"][field] = {"type": "string", "enum": [*names[field]]}
    for node in _objects(narrow):
        if node.pop(LENIENT, False):  # any value is accepted
            node.clear()
        if node.get("in") == "path" and node.get("name") in names:
            node["schema"] = {"anyOf": [{"enum": [*names[str(node["name"])]]}, node["schema"]]}  # others are made too
    return narrow


_NAMED_IN_BODIES = {"model", "input_file_id"}


def _bodies(whole: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas of tenants' bodies themselves, not of what is inside them."""
    acts = [act for acts in whole["paths"].values() for act in acts.values() if "tenant" in act["tags"]]
    for ref in {node["$ref"] for act in acts for node in _objects(act.get("requestBody")) if "$ref" in node}:
        body = whole["components"]["schemas"][ref.rsplit("/", 1)[1]]
        if "properties" in body:
            yield body


def _objects(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        yield from _objects(inner)


async def run(
    served: Served, who: str, folder: Path, names: Names, *, cases: int, within_s: int, seed: int | None = None
) -> Report:
    """Send up to so many cases of each operation of these callers, for so long. `seed`: None: the same at each run."""
    (folder / "openapi.json").write_text(json.dumps(narrowed(document(), names)))
    (folder / "schemathesis.toml").write_text(CONFIG)
    chosen = ("--generation-deterministic",) if seed is None else ("--seed", str(seed))
    key = ADMIN_KEY if who == "admin" else served.keys["acme"]
    program = await asyncio.create_subprocess_exec(
        TOOL,
        "run",
        "openapi.json",
        *("--url", served.url, "--header", f"Authorization: Bearer {key}", "--include-tag", who),
        *("--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing"),
        *("--max-examples", str(cases), "--max-time", str(within_s), "--continue-on-failure", "--no-color"),
        *(*chosen, "--warnings", "off"),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(within_s + _SILENT_S):
            said = (await program.communicate())[0].decode()
    finally:
        if program.returncode is None:
            program.kill()
    sent = _CASES.search(said)
    return Report(who, int(sent[1]) if sent else 0, program.returncode == 0, said)


def unrefused(url: str, folder: Path) -> GatewaySettings:
    """Settings of a gateway that bears any number of wrong requests."""
    return folder_settings(url, folder, refused_per_minute=10_000_000)


@asynccontextmanager
async def furnished(served: Served) -> AsyncIterator[Names]:
    """Add workers of other models, and what a tenant owns."""
    sees = msgspec.structs.replace(
        byte_level_card(), model="seeing", media={"image": MediaForm(before=(BEFORE,), after=(AFTER,))}
    )
    workers = [
        HandWorker(served.store, sees, worker_id="seeing", engine=Engine()),
        PoolingWorker(served.store, embedding_card("embedder"), worker_id="embedder"),
        PoolingWorker(served.store, scoring_card("reranker"), worker_id="reranker"),
    ]
    working = [asyncio.create_task(worker.run()) for worker in workers]
    cache = served.resources.fleet.cache
    try:
        await until(lambda: sum(model.is_served for model in cache.models.values()) > len(workers))
        yield {**await _owned(served), "model": tuple(cache.models)}
    finally:
        for task in working:
            await end(task)


async def _owned(served: Served) -> Names:
    """Make tenants, one of them with a key that is used, and what that one owns; the names of all."""
    for name in ("acme", *TENANTS):
        await served.tenant(name)
    async with served.sdk() as client:
        batches = [await begun(client, lines(3)) for _ in range(FILES)]
        responses = [await client.responses.create(model="tiny", input="Hello") for _ in range(FILES)]
        talks = [await client.conversations.create(items=[{"role": "user", "content": "Hi"}]) for _ in range(FILES)]
        items = [(await client.conversations.items.list(talk.id)).data[0].id for talk in talks]
    asked = {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]}
    inline = {"requests": [{"custom_id": "a", "params": asked}]}
    messages = [(await served.post("/v1/messages/batches", inline)).json()["id"] for _ in range(FILES)]
    files = [batch.input_file_id for batch in batches]
    return {
        "tenant": TENANTS,
        "file": files,
        "input_file_id": files,
        "batch": [batch.id for batch in batches],
        "response_id": [response.id for response in responses],
        "conversation": [talk.id for talk in talks],
        "item": [item or "" for item in items],
        "message_batch": messages,
    }


async def _long(cases: int, minutes: float, seed: int | None) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        store = EmbeddedStore(Path(directory))
        store.start()
        try:
            async with serving(unrefused(store.url, Path(directory))) as served:
                within_s = round(minutes * 60 / len(WHO))
                async with furnished(served) as names:
                    reports = [
                        await run(served, who, Path(directory), names, cases=cases, within_s=within_s, seed=seed)
                        for who in WHO
                    ]
        finally:
            store.stop()
    for report in reports:
        sys.stdout.write(f"{report.said}\n" if not report.passed else "")
    for report in reports:
        sys.stdout.write(f"{report.who}: {report.cases} cases, {'well' if report.passed else 'NOT WELL'}\n")
    return all(report.passed for report in reports)


def main() -> int:
    """Run it; 1 where anything failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=400, help="made up at random for each call, beside the edge cases")
    parser.add_argument("--minutes", type=float, default=30.0, help="at most, for all of it")
    parser.add_argument("--seed", type=int, help="for other cases than the usual ones")
    options = parser.parse_args()
    return 0 if asyncio.run(_long(options.cases, options.minutes, options.seed)) else 1


if __name__ == "__main__":
    sys.exit(main())
