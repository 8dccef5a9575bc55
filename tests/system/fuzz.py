"""Hostile requests, made from valid ones by mutation, and sent to a gateway of its own.

python -m tests.system.fuzz [--requests 20000] [--minutes 20] [--seed 1] [--only NUMBER]

Bodies are changed in their tree (wrong types, far too long, deeply nested, fields of other calls, schemas that explode)
and in their bytes; headers say what is not so; the model says what could be taken for a call, an event or an end.

Failed is a 5xx but one that asks for patience, an error of another form, a stream that no parser of events can read, a
refusal that takes long, and anything that is logged as a fault. Request NUMBER of a seed is always the same.
"""

import argparse
import asyncio
import gzip
import json
import logging
import random
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from fairlane.cli.embedded_store import EmbeddedStore
from tests.support.gateway.batch_files import begun, ended, folder_settings, line, results
from tests.support.gateway.hostile import HEADERS, KNOWN_FIELDS, SEEDS, VALUES, WORDS
from tests.support.gateway.served import Served, serving
from tests.support.gateway.sse_events import read_events

AT_ONCE = 8
LONGEST_S = 30.0
PATIENCE = {503, 504}
"""A gateway or its store that is full, or a deadline that was stated."""
LINES = 12
"""Of one batch of mutated lines."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request."""

    number: int
    path: str
    content: bytes
    headers: dict[str, str]


@dataclass(slots=True)
class Findings:
    """What was seen."""

    statuses: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    """Of the refused ones."""
    peak_bytes: dict[str, int] = field(default_factory=dict)
    """Of the gateway's process and the largest child that checks grammars."""

    def measure(self) -> None:
        """Look at the memory of this process and its children."""
        own = psutil.Process()
        self._look_at("gateway", own)
        for child in own.children():
            with suppress(psutil.Error):
                if "fairlane.gateway.dialects.grammar.check_process" in child.cmdline():
                    self._look_at("checker", child)

    def _look_at(self, who: str, process: psutil.Process) -> None:
        with suppress(OSError):  # no Linux, or it has ended
            told = Path(f"/proc/{process.pid}/status").read_text()
            peak = next(line for line in told.splitlines() if line.startswith("VmHWM:"))
            self.peak_bytes[who] = max(self.peak_bytes.get(who, 0), 1024 * int(peak.split()[1]))


class _Faults(logging.Handler):
    """Takes what is logged with a traceback, or as an error."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(logging.WARNING)
        self._findings = findings

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            self._findings.faults.append("logged: " + self.format(record)[:4_000])


def attempt(seed: int, number: int) -> Attempt:
    """The request of this number."""
    chance = random.Random(f"{seed}-{number}")
    path, body = chance.choice(SEEDS)
    tree = _copy(body)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3, 6))):
        tree = mutated(tree, chance)
    content = written(tree, chance)
    if chance.random() < 0.2:
        content = scrambled(content, chance)
    headers = {"content-type": "application/json"}
    if chance.random() < 0.15:
        headers |= dict([chance.choice(HEADERS)])
    if chance.random() < 0.03:
        content, headers["content-encoding"] = compressed(content, chance)
    return Attempt(number, path, content, headers)


def mutated(tree: Any, chance: random.Random) -> Any:
    """The same with one place changed."""
    places = list(_places(tree))
    if not places:
        return _copy(chance.choice(VALUES))
    holder, key = chance.choice(places)
    match chance.randrange(8):
        case 0 | 1 | 2:
            holder[key] = _copy(chance.choice(VALUES))
        case 3:
            del holder[key]
        case 4 if isinstance(holder, dict):
            holder[chance.choice(KNOWN_FIELDS)] = _copy(chance.choice((holder[key], *chance.sample(VALUES, 2))))
        case 5:
            other, place = chance.choice(places)
            holder[key] = _copy(other[place])
        case 6:
            holder[key] = _copy(chance.choice(([holder[key]], {"a": holder[key]}, [holder[key]] * 10)))
        case _:
            body = chance.choice(SEEDS)[1]
            donors = list(_places(body))
            other, place = chance.choice(donors)
            holder[key] = _copy(other[place])
    return tree


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    waiting = [tree] if isinstance(tree, dict | list) else []
    while waiting and len(waiting) < 2_000:
        holder = waiting.pop()
        keys: list[Any] = [*holder] if isinstance(holder, dict) else [*range(len(holder))]
        for key in keys[:50]:
            yield holder, key
            if isinstance(holder[key], dict | list):
                waiting.append(holder[key])


def written(tree: Any, chance: random.Random) -> bytes:
    """As JSON, with lone surrogates as themselves or as escapes."""
    text = json.dumps(tree, ensure_ascii=chance.random() < 0.5, indent=chance.choice((None, None, 1)))
    return text.encode("utf-8", "surrogatepass")


def scrambled(content: bytes, chance: random.Random) -> bytes:
    """With some bytes changed, cut, doubled or put in."""
    for _ in range(chance.randint(1, 4)):
        at, to = sorted((chance.randrange(len(content) + 1), chance.randrange(len(content) + 1)))
        to = min(to, at + chance.choice((1, 4, 64, 10**6)))
        piece = chance.choice((b"", b"\0", b"\xff", b'"', b"{", b"]", b"\\", b",", b"\r\n\r\n", content[at:to] * 2))
        content = content[:at] + piece + content[to:]
    return content


def compressed(content: bytes, chance: random.Random) -> tuple[bytes, str]:
    """Compressed, or said to be; sometimes ten megabytes of nothing."""
    content = chance.choice((content, b"0" * 10 * 2**20))
    kind = chance.choice(("gzip", "deflate", "br", "zstd", "identity, gzip", "x-gzip"))
    return (zlib.compress(content) if kind == "deflate" else gzip.compress(content, 1)), kind


async def send(served: Served, client: httpx.AsyncClient, tried: Attempt, findings: Findings) -> None:
    """Send it, and look at what comes back."""
    began = time.monotonic()
    key = {"authorization": f"Bearer {served.keys['acme']}"}
    try:
        answer = await client.post(tried.path, content=tried.content, headers={**key, **tried.headers})
    except httpx.HTTPError as error:
        findings.faults.append(f"#{tried.number} {tried.path}: {type(error).__name__}")
        return
    took_s = time.monotonic() - began
    if answer.status_code >= 400:
        findings.slowest_s = max(findings.slowest_s, took_s)
    findings.statuses[f"{answer.status_code}"] += 1
    is_slow = took_s > LONGEST_S and answer.status_code >= 400  # what is served takes what its model takes
    fault = "it takes long" if is_slow else wrong(tried.path, answer)
    if fault:
        findings.faults.append(f"#{tried.number} {tried.path}: {answer.status_code}, {fault}: {answer.text[:300]}")


def wrong(path: str, answer: httpx.Response) -> str:
    """What is wrong with an answer."""
    if answer.status_code >= 500 and answer.status_code not in PATIENCE:
        return "a fault of the server's"
    kind = answer.headers.get("content-type", "")
    try:
        if kind == "text/event-stream":
            return _wrong_stream(path, answer.content)
        told = json.loads(answer.content)
    except ValueError as error:
        return f"not readable ({type(error).__name__})"
    if answer.status_code < 400:
        return "" if isinstance(told, dict) else "no object"
    return _wrong_error(path, told)


def _wrong_error(path: str, told: Any) -> str:
    error = told.get("error") if isinstance(told, dict) else None
    fields = {"type", "message"} if path.startswith("/v1/messages") else {"message", "type", "param", "code"}
    if not isinstance(error, dict) or not fields <= error.keys():
        return "an error of another form"
    return "" if isinstance(error["message"], str) and len(error["message"]) < 1_000 else "a message that is none"


def _wrong_stream(path: str, content: bytes) -> str:
    events = read_events(content)
    if not events:
        return "a stream without events"
    last = events[-1]
    told = [json.loads(event.data) for event in events if event.data != "[DONE]"]
    if any("error" in each for each in told if isinstance(each, dict) and each.get("error")):
        return ""
    ends = {"/v1/messages": last.name == "message_stop", "/v1/responses": last.name.startswith("response.")}
    return "" if ends.get(path, last.data == "[DONE]") else "a stream that does not end"


async def send_batch(served: Served, seed: int, number: int, findings: Findings) -> None:
    """A file of good and mutated lines: each line is answered once, and the good ones well."""
    chance = random.Random(f"{seed}-batch-{number}")
    lines = [line(f"good-{place}") for place in range(LINES)]
    for place in chance.sample(range(LINES), LINES // 2):
        spoiled = scrambled(written(mutated(json.loads(lines[place]), chance), chance), chance)
        lines[place] = spoiled.replace(b"\n", b" ")
    good = {f"good-{place}" for place in range(LINES) if lines[place] == line(f"good-{place}")}
    async with served.sdk() as client:
        batch = await ended(client, await begun(client, b"\n".join(lines) + b"\n"), within_s=LONGEST_S)
        done = await results(client, batch.output_file_id)
    findings.statuses[f"batch {batch.status}"] += 1
    counts = batch.request_counts
    total = sum(1 for each in lines if each.strip())
    if batch.status != "completed" or counts is None or counts.completed + counts.failed != total:
        findings.faults.append(f"batch {number}: {batch.status}, {counts}, of {total}")
    if not good <= done.keys():
        findings.faults.append(f"batch {number}: {sorted(good - {str(each) for each in done})} are not answered")


async def run(served: Served, seed: int, *, requests: int, within_s: float) -> Findings:
    """So many requests, for so long at most."""
    findings, until = Findings(), time.monotonic() + within_s
    handler, loop = _Faults(findings), asyncio.get_running_loop()
    logging.getLogger().addHandler(handler)
    loop.set_exception_handler(lambda _, context: findings.faults.append(f"loop: {context.get('message')}"))
    numbers = iter(range(requests))

    async def sender(client: httpx.AsyncClient) -> None:
        for number in numbers:
            if time.monotonic() > until:
                return
            if number % 50 == 0:
                served.worker.say(random.Random(f"{seed}-says-{number}").choice(WORDS))
                findings.measure()
            try:
                if number % 200 == 100:
                    await send_batch(served, seed, number, findings)
                await send(served, client, attempt(seed, number), findings)
            except Exception as error:  # noqa: BLE001 - told with the others
                findings.faults.append(f"#{number}: {type(error).__name__}: {error}"[:500])

    try:
        async with httpx.AsyncClient(base_url=served.url, timeout=2 * LONGEST_S) as client:
            await asyncio.gather(*(sender(client) for _ in range(AT_ONCE)))
        findings.measure()
    finally:
        logging.getLogger().removeHandler(handler)
        loop.set_exception_handler(None)
    return findings


async def _long(seed: int, requests: int, minutes: float, only: int | None) -> Findings:
    with tempfile.TemporaryDirectory() as directory:
        store = EmbeddedStore(Path(directory))
        store.start()
        try:
            async with serving(folder_settings(store.url, Path(directory), refused_per_minute=10_000_000)) as served:
                await served.tenant()
                if only is None:
                    return await run(served, seed, requests=requests, within_s=minutes * 60)
                findings = Findings()
                async with httpx.AsyncClient(base_url=served.url, timeout=2 * LONGEST_S) as client:
                    await send(served, client, attempt(seed, only), findings)
                return findings
        finally:
            store.stop()


def main() -> int:
    """Run it; 1 where anything failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=20_000, help="at most")
    parser.add_argument("--minutes", type=float, default=20.0, help="at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="the request of this number alone")
    options = parser.parse_args()
    findings = asyncio.run(_long(options.seed, options.requests, options.minutes, options.only))
    for fault in findings.faults:
        sys.stdout.write(f"{fault}\n")
    peaks = {who: f"{size / 2**20:.0f} MiB" for who, size in findings.peak_bytes.items()}
    sys.stdout.write(f"{dict(findings.statuses)}, slowest refusal {findings.slowest_s:.1f} s, peaks {peaks}\n")
    sys.stdout.write(f"{len(findings.faults)} faults\n")
    return 1 if findings.faults else 0


if __name__ == "__main__":
    sys.exit(main())
