"""The page at /docs: of files that are as they were published, and of nothing from elsewhere."""

import hashlib
import re
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from fairlane.gateway.control.openapi import page

pytestmark = pytest.mark.anyio

VENDOR = Path(page.__file__).parent / "vendor"


def test_what_others_made_is_as_they_published_it() -> None:
    for folder in VENDOR.iterdir():
        sums = dict(line.split("  ")[::-1] for line in (folder / "SHA256SUMS").read_text().splitlines())
        own = {"README.md", "SHA256SUMS"}

        assert sums == {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in folder.iterdir()
            if file.name not in own
        }
        assert "LICENSE" in sums


async def test_the_page_needs_nothing_from_elsewhere() -> None:
    transport = httpx.ASGITransport(Starlette(routes=page.routes()))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        shown = await http.get("/docs")
        loaded = re.findall(r'(?:src|href)="([^"]+)"', shown.text)
        files = [await http.get(f"/{name}") for name in loaded if name != "openapi.json"]
        known = await http.get("/docs", headers={"if-none-match": shown.headers["etag"]})

    assert len(files) == 3
    assert not [name for name in loaded if ":" in name or name.startswith("/")]
    assert [file.status_code for file in files] == [200, 200, 200]
    assert known.status_code == 304
    policy = shown.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
