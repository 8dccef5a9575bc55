"""Any URL, redirect and response is read or refused, never an error of the gateway."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlane.gateway.errors import ApiError
from fairlane.gateway.media.addresses import AllowedHosts
from fairlane.gateway.media.fetcher import Fetcher
from fairlane.gateway.media.reader import Media, MediaLimits, MediaSource
from fairlane.gateway.media.refusal import MediaRefused
from fairlane.gateway.media.response import Response
from fairlane.scheduler.protocol.settings import Networks

PARTS = st.sampled_from(
    ["http", "https", "file", ":", "//", "/", "\\", "@", "#", "?", "[", "]", "::1", "%", "%00", "..", ".", "127.0.0.1",
     "0x7f", "example.com", "xn--", "\u00fc", "\u3002", "\ud800", "\0", "\r\n", " ", ":443", ":0",
     ":65536", "data:", "a" * 64]
)  # fmt: skip
URLS = st.lists(PARTS, max_size=10).map("".join) | st.text(max_size=30).map("https://{}".format) | st.text(max_size=30)


def unknown(host: str, port: int) -> Sequence[str]:
    assert host
    assert host.isascii()
    raise OSError


def read(url: str) -> None:
    fetcher = Fetcher(AllowedHosts(["*", "http://*"]), Networks(), 1_000, 10.0, unknown)
    asyncio.run(Media(MediaLimits(), fetcher).read([MediaSource(url, "image")], "acme", lambda _: None))


@given(URLS)
@example("https://[v1.x]/")
@example("https://xn--a/")
def test_any_url_is_refused(url: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(url)
    assert refused.value.status == 400


LINES = st.sampled_from(
    [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n", b"HTTP/1.1 302 Found\r\n", b"HTTP/1.0 999 \r\n",
     b"HTTP/1.1 101 S\r\n", b"\r\n", b"content-length: 3\r\n", b"content-length: 99999999999999999999999\r\n",
     b"transfer-encoding: chunked\r\n", b"upgrade: x\r\nconnection: upgrade\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n",
     b"abc", b"\0", b"\n", b"location: \xff\r\n"]
)  # fmt: skip


@given(st.lists(LINES | st.binary(max_size=20), max_size=12))
def test_any_response_is_read_or_refused(parts: list[bytes]) -> None:
    response = Response()
    try:
        for part in [*filter(None, parts), b""]:
            response.feed(part)
            if response.is_complete:
                break
    except MediaRefused:
        return
    finally:
        response.close()
    assert response.is_complete
    assert response.status >= 200
