"""Records ended requests: arrival, sizes and pseudonyms.

A thread writes once a second, so a gateway that is killed loses one second and leaves a readable file. No content is
written: prompts are named by keyed hashes, block by block."""

import asyncio
import logging
import os
import threading
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from typing import IO

import msgspec

from fairlane.gateway.insight.request_traces.files import TraceFolder
from fairlane.gateway.request.service_level import ServiceLevel
from fairlane.quotas.tenants import Tenant
from fairlane.scheduler.admission.open_requests import Request
from fairlane.scheduler.simulation.trace import SERVED, VERSION, RecordedHead, RecordedRequest, RecordedTenant
from fairlane.store.errors import STORE_ERRORS
from fairlane.store.retry import every

FLUSH_S = 1.0
# Ended requests that are not written yet, and tokens of their prompts; further requests are not recorded.
MOST_WAITING, MOST_WAITING_TOKENS = 20_000, 2_000_000

BLOCK_TOKENS = 128
MOST_BLOCKS = 512
# Bytes of a block's name, which fits any reader's integers.
_NAME_BYTES = 6
REMEMBERED = 10_000

log = logging.getLogger(__name__)


class Asked(msgspec.Struct, kw_only=True):
    """A request's parameters, and its end."""

    # On the event loop's clock.
    arrived_s: float
    tenant: Tenant
    model: str
    level: ServiceLevel
    prompts: Sequence[Sequence[int]]
    requests: Sequence[Request]
    salt: str
    at_ms: float = 0.0
    outputs: Sequence[int] = ()
    outcome: str = SERVED


class TraceRecorder:
    """Writes to a sequence of files. Without a folder it records nothing."""

    def __init__(
        self, folder: TraceFolder | None, key: Callable[[], Awaitable[bytes]], *, most_bytes: int = 64 * 2**20
    ) -> None:
        self._folder = folder
        self._key = key
        self._most_bytes = most_bytes
        self._waiting: list[Asked] = []
        self._waiting_tokens = 0
        self._left_out = 0
        self._is_failing = False
        self._lines: TraceLines | None = None
        self._file: IO[bytes] | None = None
        self._written = 0
        # `close` may run while the last round's thread still writes.
        self._writing = threading.Lock()

    @property
    def is_on(self) -> bool:
        return self._folder is not None

    def ended(self, asked: Asked, outputs: Sequence[int], code: str | None) -> None:
        """Note an ended request. `outputs`: tokens of all choices of each prompt, if any; `code`: of its error."""
        tokens = sum(map(len, asked.prompts))
        if len(self._waiting) >= MOST_WAITING or self._waiting_tokens + tokens > MOST_WAITING_TOKENS:
            self._left_out += 1
            return
        self._waiting_tokens += tokens
        asked.at_ms = (time.time() - asyncio.get_running_loop().time() + asked.arrived_s) * 1e3
        asked.outputs, asked.outcome = outputs, code or SERVED
        self._waiting.append(asked)

    async def run(self) -> None:
        try:
            await every(FLUSH_S, "recording requests", self.flush)
        finally:
            with suppress(*STORE_ERRORS):
                await self.flush()
            self.close()

    def close(self) -> None:
        if self._lines is not None:
            self._write(self._take(), self._lines)
        self._give_up()

    async def flush(self) -> None:
        if not self._waiting:
            return
        if self._lines is None:
            self._lines = TraceLines(Pseudonyms(await self._key()))
        await asyncio.to_thread(self._write, self._take(), self._lines)

    def _take(self) -> list[Asked]:
        taken, self._waiting, self._waiting_tokens = self._waiting, [], 0
        if self._left_out:
            log.warning("%d requests were not recorded: they ended faster than they could be written", self._left_out)
            self._left_out = 0
        return taken

    def _write(self, requests: Sequence[Asked], lines: "TraceLines") -> None:
        with self._writing:
            try:
                for asked in requests:
                    file = self._opened(lines)
                    made = lines.of(asked)
                    file.write(made)
                    self._written += len(made)
                if self._file is not None:
                    self._file.flush()
                self._is_failing = False
            except OSError as error:
                if not self._is_failing:
                    log.warning("requests are not recorded: %s", error.strerror or type(error).__name__)
                self._is_failing = True
                self._give_up()

    def _give_up(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _opened(self, lines: "TraceLines") -> IO[bytes]:
        assert self._folder is not None  # noqa: S101 - nothing is noted without a folder
        if self._written >= self._most_bytes:
            self._give_up()
        if self._file is None:
            created = os.open(self._folder.new("recorded"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o600)
            self._file = os.fdopen(created, "wb")
            self._written = self._file.write(lines.head())
            self._folder.sweep("recorded")
        return self._file


class Pseudonyms:
    """Keyed hashes of tenants and of prompt prefixes, which only show equality.

    The key is one secret of the installation, kept in the store (`fl:pseudonyms`). All gateways therefore produce the
    same names, and a guess at a tenant or prompt cannot be tested with a trace alone."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.tenant = lru_cache(REMEMBERED)(self._tenant)

    def _tenant(self, tenant_id: str, created_at: float) -> str:
        """Return a tenant's pseudonym; a later tenant with the same id gets a different one."""
        made = blake2b(repr((tenant_id, created_at)).encode(), digest_size=8, key=self._key, person=b"tenant")
        return f"t-{made.hexdigest()}"

    def blocks(self, scope: str, prompt: Sequence[int]) -> tuple[int, ...]:
        """Return names of a prompt's whole blocks, each depending on `scope` and all tokens up to its end."""
        whole = min(len(prompt) // BLOCK_TOKENS, MOST_BLOCKS)
        if not whole:
            return ()
        ids = memoryview(array("I", prompt[: whole * BLOCK_TOKENS]))
        digest = blake2b(scope.encode(), digest_size=_NAME_BYTES, key=self._key, person=b"prompt")
        names = []
        for first in range(0, whole * BLOCK_TOKENS, BLOCK_TOKENS):
            digest.update(ids[first : first + BLOCK_TOKENS])
            names.append(int.from_bytes(digest.copy().digest()))
        return tuple(names)


class TraceLines:
    """Encodes the lines of one file."""

    def __init__(self, pseudonyms: Pseudonyms) -> None:
        self._pseudonyms = pseudonyms
        self._encode = msgspec.json.Encoder().encode
        self._written_versions: dict[str, int] = {}

    def head(self) -> bytes:
        self._written_versions = {}
        head = RecordedHead(fairlane_trace=VERSION, started_at=round(time.time(), 3), block_tokens=BLOCK_TOKENS)
        return self._encode(head) + b"\n"

    def of(self, asked: Asked) -> bytes:
        """Return a line for each prompt of a request, after one for its tenant if that is new or has changed."""
        tenant = asked.tenant
        name = self._pseudonyms.tenant(tenant.id, tenant.created_at)
        lines = [self._line(asked, name, number) for number in range(len(asked.prompts))]
        if self._written_versions.get(name) != tenant.version:
            self._written_versions[name] = tenant.version
            line = RecordedTenant(tenant=name, weight=tenant.weight, limits=tenant.limits.as_dict())
            lines.insert(0, self._encode(line))
        return b"\n".join(lines) + b"\n"

    def _line(self, asked: Asked, tenant: str, number: int) -> bytes:
        level, request, prompt = asked.level, asked.requests[number], asked.prompts[number]
        scope = asked.tenant.share_group or tenant
        return self._encode(
            RecordedRequest(
                at_ms=round(asked.at_ms, 1),
                tenant=tenant,
                lane=level.lane.name,
                prompt_tokens=len(prompt),
                output_tokens=asked.outputs[number] if asked.outputs else 0,
                max_tokens=request.max_tokens if request.max_tokens_stated else None,
                n=request.choices,
                model=asked.model,
                ttft_ms=level.hard_ttft_ms,
                deadline_ms=level.deadline_ms,
                outcome=asked.outcome,
                prefix=self._pseudonyms.blocks(f"{scope} {asked.salt}", prompt),
            )
        )
