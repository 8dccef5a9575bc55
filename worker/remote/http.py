"""How a server is spoken to, whatever its kind: JSON over HTTP, tokens as server-sent events, faults in our words."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import httpx
import msgspec

from fairlane.worker.engine.engine import EngineError
from fairlane.worker.remote.api import Away, Lied, Refused

ANSWER_S = 10.0
"""How long an answer may take that is no generation."""
UNKNOWN = frozenset({404, 405})
UNAUTHORISED = frozenset({401, 403})
_SERVER_ERROR = 500
_TOO_MANY = 429
BAD_KEY = "engine_key: the server does not take it"
REFUSED = frozenset({400, 413, 422})
"""Statuses that would come again. 404 is for a model that is not served any more, and ends when it is."""
_MOST_LINE_BYTES = 8 * 2**20
_DONE = b"[DONE]"

Answer = TypeVar("Answer", bound=msgspec.Struct)


class BadStatus(Away):
    """It answered, and with no success."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the engine answered with status {status}")
        self.status = status


class Http:
    """One server's base URL, with its key. Used on one event loop."""

    def __init__(self, url: str, key: str | None, kind: str) -> None:
        """`kind`: the product that is expected there, as sentences name it."""
        self._kind = kind
        headers = {"authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        timeout = httpx.Timeout(ANSWER_S, read=None)  # how long a token may take is for `streams` to say
        self._client = httpx.AsyncClient(
            base_url=url.rstrip("/"), headers=headers, limits=limits, timeout=timeout, trust_env=False
        )

    async def close(self) -> None:
        """End every connection."""
        await self._client.aclose()

    async def get(self, path: str, kind: type[Answer]) -> Answer:
        """A JSON document. Raises Away; EngineError where this is no such server, or does not take our key."""
        answer = await self._ask(path)
        if answer.status_code in UNKNOWN:
            raise EngineError(f"engine_url: no {self._kind}: {path} has status {answer.status_code}")
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.MsgspecError:
            raise EngineError(f"engine_url: no {self._kind}: {path} is not as {self._kind}'s") from None

    async def find(self, path: str, kind: type[Answer]) -> Answer | None:
        """As `get`, of a path that not every version or product has: None where it is unknown or something else."""
        answer = await self._ask(path)
        if answer.status_code in UNKNOWN:
            return None
        with suppress(msgspec.MsgspecError):
            return msgspec.json.decode(answer.content, type=kind)
        return None

    async def text(self, path: str) -> bytes:
        """What is there as it is. Raises Away; EngineError."""
        answer = await self._ask(path)
        return b"" if answer.status_code in UNKNOWN else answer.content

    async def is_healthy(self, path: str) -> bool:
        """Whether it answers there, and well."""
        try:
            return (await self._client.get(path, timeout=ANSWER_S)).is_success
        except httpx.HTTPError:
            return False

    async def tell(self, path: str, body: Mapping[str, Any]) -> int | None:
        """Post what needs no answer but its status; None where none came."""
        try:
            return (await self._client.post(path, json=body, timeout=ANSWER_S)).status_code
        except httpx.HTTPError:
            return None

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
        """The data of the answer's server-sent events, to its `[DONE]`. Raises Refused, Lied; Away where it ends
        before, or cannot be had."""
        try:
            async with self._client.stream("POST", path, json=body) as answer:
                if answer.status_code in REFUSED:
                    raise Refused(f"the engine refused it with status {answer.status_code}")
                if not answer.is_success:
                    raise BadStatus(answer.status_code)
                rest = b""
                async for part in answer.aiter_bytes():
                    *lines, rest = (rest + part).split(b"\n")
                    if len(rest) > _MOST_LINE_BYTES:
                        raise Lied("a line of the stream is too long")
                    for line in lines:
                        data = line[5:].strip() if line.startswith(b"data:") else b""
                        if data == _DONE:
                            return
                        if data:
                            yield data
        except httpx.HTTPError as error:
            raise Away(type(error).__name__) from None
        raise Away("the stream ended before its end")

    async def _ask(self, path: str) -> httpx.Response:
        """Raises Away where it may answer later, EngineError where it never will."""
        try:
            answer = await self._client.get(path, timeout=ANSWER_S)
        except httpx.HTTPError as error:
            raise Away(type(error).__name__) from None
        status = answer.status_code
        if status in UNAUTHORISED:
            raise EngineError(BAD_KEY)
        if status >= _SERVER_ERROR or status == _TOO_MANY:
            raise Away(f"the engine answered {path} with status {status}")
        if not answer.is_success and status not in UNKNOWN:
            raise EngineError(f"engine_url: no {self._kind}: {path} has status {status}")
        return answer
