"""The results of a batch of messages in Anthropic's format, made from its files when they are read."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import msgspec

from fairlane.gateway.batches import files
from fairlane.gateway.batches.batch import Batch
from fairlane.gateway.batches.results import EXPIRED
from fairlane.gateway.batches.storage import Storage
from fairlane.gateway.http.json_reader import raw_fields, scalar


class _Response(msgspec.Struct):
    request_id: str
    body: msgspec.Raw


class _Failure(msgspec.Struct):
    code: str
    message: str


class _Record(msgspec.Struct):
    id: str
    custom_id: str | None
    response: _Response | None
    error: _Failure | None


_read_record = msgspec.json.Decoder(_Record).decode


async def results_of(storage: Storage, batch: Batch) -> AsyncIterator[bytes]:
    """Yield the results of an ended batch in parts of whole lines: of requests that ran, then of cancelled ones.

    Raises NotStored."""
    seen = set[str | None]()
    for file_id, has_succeeded in ((batch.output_file_id, True), (batch.error_file_id, False)):
        if file_id is not None:
            async for lines in _whole_lines(storage, files.contents(file_id)):
                yield b"".join(_translated(lines, seen, has_succeeded=has_succeeded))
    if len(seen) < batch.total:
        async for lines in _whole_lines(storage, files.contents(batch.input_file_id)):
            yield b"".join(_cancelled(lines, seen))


async def _whole_lines(storage: Storage, name: str) -> AsyncIterator[list[bytes]]:
    rest = b""
    async for part in storage.read(name):
        *lines, rest = (rest + part).split(b"\n")
        yield lines
        await asyncio.sleep(0)  # other requests are served between two parts
    yield [rest]


def _translated(lines: list[bytes], seen: set[str | None], *, has_succeeded: bool) -> Iterator[bytes]:
    for record in map(_read_record, filter(None, lines)):
        seen.add(record.custom_id)
        result: dict[str, object]
        if record.response is not None:
            field = "message" if has_succeeded else "error"
            result = {"type": "succeeded" if has_succeeded else "errored", field: record.response.body}
        elif record.error is not None and record.error.code != EXPIRED:
            error = {"type": "api_error", "message": record.error.message, "code": record.error.code}
            result = {"type": "errored", "error": {"type": "error", "error": error, "request_id": record.id}}
        else:
            result = {"type": "expired"}
        yield _line(record.custom_id, result)


def _cancelled(lines: list[bytes], seen: set[str | None]) -> Iterator[bytes]:
    for line in filter(None, lines):
        try:
            custom_id = scalar(raw_fields(line).get("custom_id", b""))
        except ValueError:
            continue  # a line of an uploaded file that is not JSON
        if isinstance(custom_id, str) and custom_id not in seen:
            seen.add(custom_id)
            yield _line(custom_id, {"type": "canceled"})


def _line(custom_id: str | None, result: dict[str, object]) -> bytes:
    return msgspec.json.encode({"custom_id": custom_id, "result": result}) + b"\n"
