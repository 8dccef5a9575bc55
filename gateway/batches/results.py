"""Responses to a batch's lines: in segments while the batch runs, combined into two files at its end.

A segment counts once the store has recorded its number under the owner's run. Segments of an owner that has lost its
lease are therefore ignored, and each line has one result. A line is `o` (output) or `e` (errors), then the record."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from fairlane.gateway.batches import files
from fairlane.gateway.batches.batch import Batch, Ending, Progress
from fairlane.gateway.batches.files import StoredFile
from fairlane.gateway.batches.storage import Drafts, Storage
from fairlane.gateway.errors import ApiError, error_body
from fairlane.quotas.idempotency import LineCharge

OUTPUT, ERRORS = b"o", b"e"
_ENDS = {"expired": "The batch's completion window ended", "cancelled": "The batch was cancelled"}
_WRITE_BYTES = 256 * 1024
# Line separators that JSON strings may contain unescaped.
_UNICODE_LINE_ENDS = ("\x85", "\u2028", "\u2029")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineEnd:
    """The outcome of one line, and the tokens that it was charged."""

    place: int
    record: bytes = field(repr=False)
    is_error: bool
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class _Details(msgspec.Struct):
    cached_tokens: int | None = 0


class _ReportedUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None


class _Answered(msgspec.Struct):
    usage: _ReportedUsage | None = None


def request_id(batch: Batch, place: int) -> str:
    """Return the request id of a line, the same in each of its runs."""
    return f"batch_req_{batch.id.removeprefix('batch_')}_{place}"


def answered(batch: Batch, place: int, custom_id: str | None, status: int, body: bytes) -> LineEnd:
    """Return the outcome of a completed line."""
    usage = msgspec.json.decode(body, type=_Answered).usage or _ReportedUsage()
    details = usage.prompt_tokens_details or usage.input_tokens_details or _Details()
    return LineEnd(
        place=place,
        record=_response(batch, place, custom_id, status, body),
        is_error=False,
        prompt_tokens=usage.prompt_tokens or usage.input_tokens,
        cached_tokens=details.cached_tokens or 0,
        output_tokens=usage.completion_tokens or usage.output_tokens,
    )


def refused(batch: Batch, place: int, custom_id: str | None, error: ApiError) -> LineEnd:
    """Return the outcome of a line that was refused with an API error."""
    body = msgspec.json.encode(error_body(error, batch.endpoint, request_id(batch, place)))
    return LineEnd(place=place, record=_response(batch, place, custom_id, error.status, body), is_error=True)


def failed(batch: Batch, place: int, custom_id: str | None, code: str, message: str) -> LineEnd:
    """Return the outcome of a line that got no response."""
    record = _record(batch, place, custom_id, error={"code": code, "message": message})
    return LineEnd(place=place, record=record, is_error=True)


def unfinished(batch: Batch, place: int, custom_id: str | None, ending: Ending, charge: LineCharge | None) -> LineEnd:
    """Return the outcome of a line that its batch's end cut off. `charge`: of its runs, if there was any."""
    when = "before this line ran."
    if charge is not None:
        when = f"while this line ran: {charge.prompt} prompt and {charge.output} output tokens were charged."
    return failed(batch, place, custom_id, f"batch_{ending}", f"{_ENDS[ending]} {when}")


def _response(batch: Batch, place: int, custom_id: str | None, status: int, body: bytes) -> bytes:
    response = {"status_code": status, "request_id": request_id(batch, place), "body": msgspec.Raw(body)}
    return _record(batch, place, custom_id, response=response)


def _record(batch: Batch, place: int, custom_id: str | None, **result: object) -> bytes:
    """Encode a record as one line, safe for readers that also split lines at Unicode line separators."""
    record = {"id": request_id(batch, place), "custom_id": custom_id, "response": None, "error": None}
    line = msgspec.json.encode(record | result)
    for end in _UNICODE_LINE_ENDS:
        line = line.replace(end.encode(), b"\\u%04x" % ord(end))
    return line


class Segments:
    """The responses of a running batch."""

    def __init__(self, batch_id: str, storage: Storage, drafts: Drafts) -> None:
        self._folder = f"batches/{batch_id}"
        self._storage = storage
        self._drafts = drafts

    async def write(self, run: str, number: int, ends: Sequence[LineEnd]) -> None:
        draft = self._drafts.new()
        packed = b"".join([(ERRORS if end.is_error else OUTPUT) + end.record + b"\n" for end in ends])
        await asyncio.to_thread(draft.write_bytes, packed)
        await self._storage.put(self._name(run, number), draft)

    async def records(self, progress: Progress) -> AsyncIterator[bytes]:
        """Yield parts of the segments that count, each of whole lines. Raise NotStored."""
        for run, count in sorted(progress.segments.items()):
            for number in range(count):
                rest = b""
                async for part in self._storage.read(self._name(run, number)):
                    whole, end, rest = (rest + part).rpartition(b"\n")
                    yield whole + end
                yield rest

    async def delete(self) -> None:
        await self._storage.delete_folder(self._folder)

    def _name(self, run: str, number: int) -> str:
        return f"{self._folder}/{run}-{number}"


class OutputFiles:
    """The two files of an ending batch: first drafts, then stored under ids that depend only on the batch."""

    def __init__(self, batch: Batch, storage: Storage, drafts: Drafts) -> None:
        self._batch = batch
        self._storage = storage
        self._drafts = {kind: _Growing(drafts.new()) for kind in (OUTPUT, ERRORS)}

    async def add(self, lines: bytes) -> None:
        for line in lines.splitlines(keepends=True):
            self._drafts[line[:1]].add(line[1:])
        for draft in self._drafts.values():
            if len(draft.unwritten) >= _WRITE_BYTES:
                await asyncio.to_thread(draft.flush)

    async def put(self) -> dict[bytes, StoredFile]:
        made: dict[bytes, StoredFile] = {}
        now_s = int(time.time())
        for kind, draft in self._drafts.items():
            await asyncio.to_thread(draft.flush)
            if draft.bytes:
                file_id = output_id(self._batch.id, kind)
                await self._storage.put(files.contents(file_id), draft.path)
                made[kind] = StoredFile(
                    id=file_id,
                    bytes=draft.bytes,
                    created_at=now_s,
                    expires_at=now_s + self._batch.output_expires_s,
                    filename=f"{self._batch.id}_{'output' if kind == OUTPUT else 'error'}.jsonl",
                    purpose="batch_output",
                )
        return made

    def discard(self) -> None:
        for draft in self._drafts.values():
            draft.path.unlink(missing_ok=True)


def output_id(batch_id: str, kind: bytes) -> str:
    """Return the id of one of a batch's output files."""
    return f"file-{hashlib.sha256(kind + batch_id.encode()).hexdigest()[:24]}"


class _Growing:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.unwritten = bytearray()
        self.bytes = 0

    def add(self, line: bytes) -> None:
        self.unwritten += line
        self.bytes += len(line)

    def flush(self) -> None:
        file: IO[bytes]
        with self.path.open("ab") as file:
            file.write(self.unwritten)
        self.unwritten = bytearray()
