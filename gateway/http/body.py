"""Reads whole request bodies within bounds of bytes and time, and within the tenant's budget."""

import asyncio
from collections.abc import Sequence

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from fairlane.gateway.errors import request_timeout, request_too_large
from fairlane.gateway.http.body_budget import PART_BYTES, BodyHold
from fairlane.gateway.http.encodings import HEADER, DecodedBody, coding_of

# Longest declared length, in digits; a longer one is above any limit.
_MAX_DIGITS = 18
# Larger bodies are joined in a thread: 8 MB take 5 ms. Python releases the GIL while it joins that many bytes.
_JOINED_AT_ONCE_BYTES = 2**20
# A byte-order mark, which some editors put before a text in UTF-8.
_BOM = b"\xef\xbb\xbf"


async def read_body(
    receive: Receive,
    headers: Sequence[tuple[bytes, bytes]],
    *,
    max_bytes: int,
    timeout_s: float,
    arrived: bytes | None = None,
    hold: BodyHold | None = None,
    tenant: str = "",
) -> bytes:
    """Return the whole body, decoded and without a byte-order mark.

    `headers` are the ASGI scope's; `arrived` is the body, if all of it has arrived already. `hold` is the body's place
    in the budget, which is charged to `tenant` before anything is awaited; the caller releases it.

    Raises ApiError: `request_too_large` before reading it all (by Content-Length, or as soon as the count is exceeded),
    `concurrency_limit_exceeded` or `overloaded_memory` if the budget has no room, `request_timeout` if it does not
    arrive in time, `unsupported_encoding`, 400 if it cannot be decoded. Raises starlette's ClientDisconnect."""
    declared, coding = b"", None
    for name, value in headers:
        if name == HEADER:
            coding = coding_of(headers)
        if name == b"content-length":
            declared = declared or value
    length = declared_length(declared, max_bytes)
    if arrived is not None and len(arrived) > max_bytes:
        raise request_too_large(max_bytes)
    if hold is not None:
        hold.claim(tenant, length)
    if coding is not None:
        receive = DecodedBody(coding, receive, arrived, max_bytes=max_bytes, hold=hold)
    elif arrived is not None:
        return arrived.removeprefix(_BOM)
    try:
        async with asyncio.timeout(timeout_s):
            return (await _received(receive, max_bytes, hold)).removeprefix(_BOM)
    except TimeoutError:
        raise request_timeout(timeout_s) from None


def declared_length(declared: bytes, max_bytes: int) -> int:
    """Return the declared length of a body; 0 without one. Raises ApiError if it is too large."""
    if not declared.isdigit():
        return 0
    if len(declared) > _MAX_DIGITS or int(declared) > max_bytes:
        raise request_too_large(max_bytes)
    return int(declared)


async def _received(receive: Receive, max_bytes: int, hold: BodyHold | None) -> bytes:
    parts: list[bytes] = []
    small = bytearray()  # small parts are merged, so that no body is held as many small objects
    count, more = 0, True
    while more:
        message = await receive()
        if hold is not None:
            hold.check()  # a refused part does not arrive here
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body, more = message.get("body", b""), message.get("more_body", False)
        del message  # frees this part while the next is awaited
        count += len(body)
        if count > max_bytes:
            raise request_too_large(max_bytes)
        taken, is_large = len(parts), len(body) >= PART_BYTES
        if not is_large:
            small += body
        if small and (is_large or not more or len(small) >= PART_BYTES):
            parts.append(bytes(small))
            small.clear()
        if is_large:
            parts.append(body)
        if more and hold is not None and len(parts) > taken:
            await hold.turn()
    if count <= _JOINED_AT_ONCE_BYTES:
        return b"".join(parts)
    return await asyncio.to_thread(b"".join, parts)
