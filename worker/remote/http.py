"""HTTP access to a server of any kind: JSON, tokens as server-sent events, and the errors of `api.py`."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import httpx
import msgspec

from fairlane.worker.errors import EngineError
from fairlane.worker.remote.api import EngineUnavailable, Piece, ProtocolViolation, Refused

# Time limit of replies other than generations.
ANSWER_S = 10.0
UNKNOWN = frozenset({404, 405})
UNAUTHORISED = frozenset({401, 403})
_SERVER_ERROR = 500
_TOO_MANY = 429
BAD_KEY = "engine_key: the server rejects it"
# Statuses that a retry would not change. 404 is not among them: it means that a model is missing, possibly only for a
# while.
REFUSED = frozenset({400, 413, 422})
_MOST_LINE_BYTES = 8 * 2**20
# Room for 500,000 log-probabilities of a prompt.
_MOST_REPLY_BYTES = 64 * 2**20
_DONE = b"[DONE]"

Answer = TypeVar("Answer", bound=msgspec.Struct)


class ModelMeta(msgspec.Struct):
    """llama.cpp's description of a model."""

    n_ctx: int | None = None


class ServedModel(msgspec.Struct):
    """A model in `/v1/models`, with the fields of every kind of server."""

    id: str
    owned_by: str | None = None
    root: str | None = None
    # An adapter's base model.
    parent: str | None = None
    max_model_len: int | None = None
    meta: ModelMeta | None = None


class _Models(msgspec.Struct):
    data: list[ServedModel]


class BadStatus(EngineUnavailable):
    """The server replied with an error status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the engine answered with status {status}")
        self.status = status


class Http:
    """One server's base URL and key. Used on one event loop."""

    def __init__(self, url: str, key: str | None, kind: str) -> None:
        self._kind = kind
        headers = {"authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        timeout = httpx.Timeout(ANSWER_S, read=None)  # `streams` bounds the time of a token
        self._client = httpx.AsyncClient(
            base_url=url.rstrip("/"), headers=headers, limits=limits, timeout=timeout, trust_env=False
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, path: str, kind: type[Answer]) -> Answer:
        answer = await self._ask(path)
        if answer.status_code in UNKNOWN:
            raise EngineError(f"engine_url: no {self._kind}: {path} has status {answer.status_code}")
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.MsgspecError:
            raise EngineError(f"engine_url: no {self._kind}: {path} does not have {self._kind}'s format") from None

    async def find(self, path: str, kind: type[Answer]) -> Answer | None:
        """Return a JSON document that not every product provides; None if it is missing or in another format."""
        answer = await self._ask(path)
        if answer.status_code in UNKNOWN:
            return None
        with suppress(msgspec.MsgspecError):
            return msgspec.json.decode(answer.content, type=kind)
        return None

    async def models(self, name: str | None) -> tuple[ServedModel, Mapping[str, ServedModel]]:
        models = {one.id: one for one in (await self.get("/v1/models", _Models)).data}
        if not models:
            raise EngineError("engine_url: the server lists no model")
        served = models.get(name or next(iter(models)))
        if served is None:
            raise EngineError(f"engine_model: the server has no {name!r}, but {', '.join(models)}")
        return served, models

    def check_version(self, version: str, known: Sequence[str]) -> None:
        if not version.startswith(tuple(f"{one}." for one in known)):
            raise EngineError(
                f"engine_url: {self._kind} {version} is not supported: run {self._kind} {' or '.join(known)}, or a "
                "version of Fairlane that supports it"
            )

    async def text(self, path: str) -> bytes:
        answer = await self._ask(path)
        return b"" if answer.status_code in UNKNOWN else answer.content

    async def is_healthy(self, path: str) -> bool:
        try:
            return (await self._client.get(path, timeout=ANSWER_S)).is_success
        except httpx.HTTPError:
            return False

    async def post_status(self, path: str, body: Mapping[str, Any]) -> int | None:
        try:
            return (await self._client.post(path, json=body, timeout=ANSWER_S)).status_code
        except httpx.HTTPError:
            return None

    async def answer(self, path: str, body: Mapping[str, Any], kind: type[Answer]) -> Answer:
        """Return the decoded reply to a computation. Raises what `post` raises."""
        return decode_chunk(msgspec.json.Decoder(kind), await self.post(path, body))

    async def pieces(
        self, path: str, body: Mapping[str, Any], read: Callable[[bytes], Piece], abort: tuple[str, Mapping[str, Any]]
    ) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of a reply, as `read` decodes them; raises what `events` raises.

        A reply that is closed early is also aborted by a post, since a proxy may not forward the close immediately."""
        is_over = False
        try:
            async with aclosing(self.events(path, body)) as lines:
                async for line in lines:
                    piece = read(line)
                    is_over = is_over or piece.has_ended
                    yield piece
        except (GeneratorExit, asyncio.CancelledError):
            if not is_over:
                await self.post_status(*abort)
            raise

    async def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Return the whole reply to a computation. Raises Refused, ProtocolViolation, EngineUnavailable."""
        reply = bytearray()
        try:
            async with self._client.stream("POST", path, json=body) as answer:
                _check_status(answer)
                async for part in answer.aiter_bytes():
                    reply += part
                    if len(reply) > _MOST_REPLY_BYTES:
                        raise ProtocolViolation("the reply is too long")
        except httpx.HTTPError as error:
            raise EngineUnavailable(type(error).__name__) from None
        return bytes(reply)

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
        """Yield the data of the server-sent events. Raises Refused, ProtocolViolation, EngineUnavailable."""
        try:
            async with self._client.stream("POST", path, json=body) as answer:
                _check_status(answer)
                rest = b""
                async for part in answer.aiter_bytes():
                    *lines, rest = (rest + part).split(b"\n")
                    if len(rest) > _MOST_LINE_BYTES:
                        raise ProtocolViolation("a line of the stream is too long")
                    for line in lines:
                        data = line[5:].strip() if line.startswith(b"data:") else b""
                        if data == _DONE:
                            return
                        if data:
                            yield data
        except httpx.HTTPError as error:
            raise EngineUnavailable(type(error).__name__) from None
        raise EngineUnavailable("the stream was cut off")

    async def _ask(self, path: str) -> httpx.Response:
        try:
            answer = await self._client.get(path, timeout=ANSWER_S)
        except httpx.HTTPError as error:
            raise EngineUnavailable(type(error).__name__) from None
        status = answer.status_code
        if status in UNAUTHORISED:
            raise EngineError(BAD_KEY)
        if status >= _SERVER_ERROR or status == _TOO_MANY:
            raise EngineUnavailable(f"the engine answered {path} with status {status}")
        if not answer.is_success and status not in UNKNOWN:
            raise EngineError(f"engine_url: no {self._kind}: {path} has status {status}")
        return answer


def _check_status(answer: httpx.Response) -> None:
    if answer.status_code in REFUSED:
        raise Refused(f"the engine refused it with status {answer.status_code}")
    if not answer.is_success:
        raise BadStatus(answer.status_code)


def decode_chunk(decoder: msgspec.json.Decoder[Answer], data: bytes) -> Answer:
    """Decode one chunk of a stream. Raises ProtocolViolation."""
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError:
        raise ProtocolViolation("a chunk cannot be read") from None


def stream_failure(status: object, otherwise: str) -> Exception:
    """Return the error of a stream that reports this status; the status of its HTTP reply was 200."""
    if status in REFUSED:
        return Refused(f"the engine refused it with status {status}")
    return EngineUnavailable(otherwise)
