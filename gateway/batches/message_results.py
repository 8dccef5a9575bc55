"""The results of a batch of messages in Anthropic's format, made from its files when they are read."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import msgspec

from fairlane.gateway.batches import files
from fairlane.gateway.batches.batch import Batch
from fairlane.gateway.batches.storage import Storage

# Results of requests that the batch's end left without a response, by their code in the error file.
_UNFINISHED = {"batch_expired": "expired", "batch_cancelled": "canceled"}


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
    """Yield the results of an ended batch in parts of whole lines. Raises NotStored."""
    for file_id, has_succeeded in ((batch.output_file_id, True), (batch.error_file_id, False)):
        if file_id is not None:
            async for lines in _whole_lines(storage, files.contents(file_id)):
                yield b"".join(_translated(lines, has_succeeded=has_succeeded))


async def _whole_lines(storage: Storage, name: str) -> AsyncIterator[list[bytes]]:
    rest = b""
    async for part in storage.read(name):
        *lines, rest = (rest + part).split(b"\n")
        yield lines
        await asyncio.sleep(0)  # other requests are served between two parts
    yield [rest]


def _translated(lines: list[bytes], *, has_succeeded: bool) -> Iterator[bytes]:
    for record in map(_read_record, filter(None, lines)):
        result: dict[str, object]
        failure = record.error or _Failure("batch_expired", "")
        if record.response is not None:
            field = "message" if has_succeeded else "error"
            result = {"type": "succeeded" if has_succeeded else "errored", field: record.response.body}
        elif failure.code in _UNFINISHED:
            result = {"type": _UNFINISHED[failure.code]}
        else:
            error = {"type": "api_error", "message": failure.message, "code": failure.code}
            result = {"type": "errored", "error": {"type": "error", "error": error, "request_id": record.id}}
        yield _line(record.custom_id, result)


def _line(custom_id: str | None, result: dict[str, object]) -> bytes:
    return msgspec.json.encode({"custom_id": custom_id, "result": result}) + b"\n"
