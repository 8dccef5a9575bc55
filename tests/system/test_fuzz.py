"""A bounded form of `python -m tests.system.fuzz`, and whether it would see what it looks for."""

from pathlib import Path

import httpx
import pytest

from tests.support.gateway.batch_files import folder_settings
from tests.support.gateway.served import CHAT, serving
from tests.support.gateway.sse_events import ServerEvent, read_events
from tests.system.fuzz import run, wrong

pytestmark = pytest.mark.anyio

REQUESTS, WITHIN_S = 240, 60.0


async def test_a_hostile_request_is_answered_as_any_other(valkey_url: str, tmp_path: Path) -> None:
    async with serving(folder_settings(valkey_url, tmp_path, refused_per_minute=1_000_000)) as served:
        await served.tenant()
        found = await run(served, seed=1, requests=REQUESTS, within_s=WITHIN_S)

    assert found.faults == []
    assert {"200", "400", "batch completed"} <= found.statuses.keys()


@pytest.mark.parametrize(
    ("status", "kind", "content", "is_wrong"),
    [
        (500, "application/json", b'{"error": {"message": "", "type": "", "param": null, "code": ""}}', True),
        (503, "application/json", b'{"error": {"message": "", "type": "", "param": null, "code": ""}}', False),
        (400, "application/json", b'{"error": "no"}', True),
        (400, "text/plain", b"no", True),
        (200, "application/json", b"[]", True),
        (200, "text/event-stream", b"data: {}\n\ndata: [DONE]\n\n", False),
        (200, "text/event-stream", b"data: {}\n\n", True),
        (200, "text/event-stream", b"data: {\ndata: [DONE]\n\n", True),
        (200, "text/event-stream", b"", True),
        (200, "text/event-stream", b'data: {"error": {"message": "m"}}\n\n', False),
    ],
)
def test_what_is_wrong_is_seen(status: int, kind: str, content: bytes, is_wrong: bool) -> None:
    answer = httpx.Response(status, headers={"content-type": kind}, content=content)

    assert bool(wrong(CHAT, answer)) == is_wrong


def test_events_are_read_as_browsers_read_them() -> None:
    stream = (
        b"\xef\xbb\xbf: a comment\r\n\r\nevent: a\rdata:x\rdata: y\r\r\n\nid: 1\ndata\n\nevent: b\n\ndata: cut off\n"
    )

    assert read_events(stream) == [ServerEvent("a", "x\ny"), ServerEvent("", "")]
