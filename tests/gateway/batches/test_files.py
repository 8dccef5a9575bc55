"""Files by the official SDK and past it: kept as they come, bounded, and nobody else's."""

import asyncio
import gzip
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from fairlane.gateway.batches.files import contents, new_id
from fairlane.gateway.batches.lines import MAX_LINES
from fairlane.gateway.batches.runner import SWEPT_AT_ONCE
from fairlane.gateway.batches.storage import FolderStorage
from tests.support.gateway.batch_files import folder_settings, lines, upload
from tests.support.gateway.served import WAIT_S, Served, error_of, gateway, until

pytestmark = pytest.mark.anyio

MOST_BYTES = 128 * 1024


@pytest.fixture
async def served(valkey_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    bounds = {"max_bytes": MOST_BYTES, "tenant_files": 5, "tenant_bytes": 3 * MOST_BYTES, "batches": 0}
    async with gateway(folder_settings(valkey_url, tmp_path, files=bounds)) as opened:
        await opened.tenant()
        await opened.tenant("other")
        yield opened


def left(folder: Path) -> list[str]:
    """What stands on disk."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


async def test_the_sdk_keeps_lists_reads_and_deletes(served: Served, tmp_path: Path) -> None:
    content = lines(5)
    async with served.sdk() as client:
        kept = await client.files.create(file=("q.jsonl", content), purpose="batch")
        same = await client.files.retrieve(kept.id)
        listed = [each.id async for each in client.files.list(purpose="batch")]
        told = await client.files.content(kept.id)
        gone = await client.files.delete(kept.id)
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(kept.id)

    assert (kept.object, kept.filename, kept.bytes, kept.purpose) == ("file", "q.jsonl", len(content), "batch")
    assert kept.expires_at == kept.created_at + 30 * 86_400
    assert (same, listed, told.content, gone.deleted) == (kept, [kept.id], content, True)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("after=a&after=b", "after"), ("x=1", "x"), ("&".join(["limit=1"] * 100), None)],
)
@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
async def test_a_query_that_is_none_is_refused(served: Served, path: str, query: str, param: str | None) -> None:
    refused = await served.get(f"{path}?{query}")

    assert error_of(refused) == (400, "invalid_request_error")
    assert refused.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("encodings", "told"),
    [
        (("gzip",), (413, "request_too_large")),
        (("gzip", "identity"), (413, "request_too_large")),
        (("identity", "br"), (400, "invalid_request_error")),
        (("gzip, gzip",), (415, "unsupported_encoding")),
    ],
)
async def test_nothing_is_left_of_a_bomb(
    served: Served, tmp_path: Path, encodings: tuple[str, ...], told: tuple[int, str]
) -> None:
    file = b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'
    bomb = gzip.compress(file + b"0" * 10 * MOST_BYTES)
    form = [("content-type", "multipart/form-data; boundary=b"), *(("content-encoding", each) for each in encodings)]
    async with served.http as client:
        key = ("authorization", f"Bearer {served.keys['acme']}")
        refused = await client.post("/v1/files", content=bomb, headers=[key, *form])

    assert (error_of(refused), left(tmp_path)) == (told, [])


async def test_an_upload_may_be_compressed(served: Served, tmp_path: Path) -> None:
    content = lines(5)
    head = b'--b\r\ncontent-disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
    form = head % (b"purpose", b"", b"batch") + head % (b"file", b'; filename="q"', content) + b"--b--\r\n"
    kind = {"content_type": "multipart/form-data; boundary=b", "content_encoding": "gzip"}

    made = (await served.post("/v1/files", gzip.compress(form), **kind)).json()

    assert made["bytes"] == len(content)
    assert (await served.get(f"/v1/files/{made['id']}/content")).content == content


async def test_lists_come_in_pages_and_either_order(served: Served) -> None:
    async with served.sdk() as client:
        made = [(await client.files.create(file=(f"{n}", b"{}\n"), purpose="batch")).id for n in range(4)]
        oldest = [each.id async for each in client.files.list(limit=3, order="asc")]
        newest = await client.files.list(limit=3)
        rest = await client.files.list(limit=3, after=newest.data[-1].id)
        other = await client.files.list(purpose="fine-tune")

    assert (oldest, [each.id for each in newest.data], newest.has_more) == (made, made[:0:-1], True)
    assert ([each.id for each in rest.data], rest.has_more) == ([made[0]], False)
    assert (other.data, other.has_more) == ([], False)


async def test_a_client_that_closes_after_the_last_byte_of_a_file_has_not_left_early(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    content = lines(1)
    async with served.sdk() as client:
        kept = await client.files.create(file=content, purpose="batch")
    client_left = asyncio.Event()

    async def read(*_: object) -> AsyncIterator[bytes]:
        yield content
        await client_left.wait()  # the storage reports the end of the file later

    monkeypatch.setattr(FolderStorage, "read", read)
    await until(lambda: not served.server.server_state.connections)
    caplog.set_level(logging.INFO, "fairlane.gateway.middleware.tenant")
    reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
    key = served.keys["acme"]
    writer.write(f"GET /v1/files/{kept.id}/content HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\r\n".encode())
    await reader.readuntil(content)
    writer.close()
    await until(lambda: not served.server.server_state.connections)
    client_left.set()
    await until(lambda: bool(caplog.records))

    assert [record.__dict__["context"].code for record in caplog.records] == ["ok"]


async def test_a_file_expires_when_its_sender_says(served: Served) -> None:
    async with served.sdk() as client:
        kept = await client.files.create(
            file=b"{}\n", purpose="batch", expires_after={"anchor": "created_at", "seconds": 3_600}
        )
    assert kept.expires_at == kept.created_at + 3_600


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "fine-tune"}, "purpose"),
        ({"purpose": ""}, "purpose"),
        ({"colour": "red"}, "colour"),
        ({"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}, "expires_after[anchor]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "10"}, "expires_after[seconds]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "²"}, "expires_after[seconds]"),
    ],
)
async def test_what_cannot_be_kept_is_refused_by_name(
    served: Served, fields: dict[str, str], param: str, tmp_path: Path
) -> None:
    refused = await upload(served, b"{}\n", **fields)
    assert (*error_of(refused), refused.json()["error"]["param"]) == (400, "invalid_request_error", param)
    assert left(tmp_path) == []


async def test_another_tenants_file_is_not_there(served: Served) -> None:
    async with served.sdk() as mine, served.sdk("other") as others:
        kept = await mine.files.create(file=lines(1), purpose="batch")
        assert (await others.files.list()).data == []
        for call in (others.files.retrieve, others.files.content, others.files.delete):
            with pytest.raises(openai.NotFoundError):
                await call(kept.id)
        with pytest.raises(openai.BadRequestError, match="input_file_id"):
            await others.batches.create(input_file_id=kept.id, endpoint="/v1/completions", completion_window="24h")


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "..\\up", "a\x00b", "é" * 400])
async def test_a_files_name_is_told_back_and_makes_no_path(served: Served, name: str, tmp_path: Path) -> None:
    before = set(tmp_path.parent.iterdir())
    kept = (await upload(served, b"{}\n", name=name)).json()
    assert set(tmp_path.parent.iterdir()) == before
    assert left(tmp_path) == [f"files/files/{kept['id']}", f"files/files/{kept['id']}.index"]


@pytest.mark.parametrize("file_id", ["..", "%2e%2e%2fetc", "file-", "file-" + "0" * 24, "x" * 2_000, "file-%0a"])
async def test_ids_that_are_none_are_not_found(served: Served, file_id: str) -> None:
    for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content", f"/v1/batches/{file_id}"):
        assert (await served.get(path)).status_code in (400, 404)


async def test_a_file_over_the_limit_is_refused_before_it_has_come(served: Served, tmp_path: Path) -> None:
    head = (
        "POST /v1/files HTTP/1.1\r\nhost: here\r\n"
        f"authorization: Bearer {served.keys['acme']}\r\n"
        "content-type: multipart/form-data; boundary=b\r\n"
    )
    address = served.server.servers[0].sockets[0].getsockname()[:2]
    for framing in (f"content-length: {201 * 2**20}\r\n\r\n", "transfer-encoding: chunked\r\n\r\n"):
        reader, writer = await asyncio.open_connection(*address)
        writer.write((head + framing).encode())
        if "chunked" in framing:
            part = b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n' + b"x" * (2 * MOST_BYTES)
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        async with asyncio.timeout(WAIT_S):
            status = await reader.readline()
        writer.close()
        assert b"413" in status
    await until(lambda: left(tmp_path) == [])


async def test_a_client_that_leaves_in_the_middle_leaves_nothing(served: Served, tmp_path: Path) -> None:
    address = served.server.servers[0].sockets[0].getsockname()[:2]
    _, writer = await asyncio.open_connection(*address)
    writer.write(
        b"POST /v1/files HTTP/1.1\r\nhost: here\r\ncontent-length: 60000\r\n"
        b"authorization: Bearer " + served.keys["acme"].encode() + b"\r\n"
        b"content-type: multipart/form-data; boundary=b\r\n\r\n"
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n{}\n'
    )
    await until(lambda: len(left(tmp_path)) == 1)
    writer.close()
    await until(lambda: left(tmp_path) == [])
    async with asyncio.timeout(WAIT_S):
        while await served.store.keys("fl:batches:{acme}:file:*"):  # noqa: ASYNC110 - the store tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"--b\r\n\r\n",
        b"--c\r\n\r\n--c--",
        b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\n{}',
        b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n' * 20 + b"--b--",
    ],
)
async def test_a_broken_form_is_a_400(served: Served, body: bytes) -> None:
    async with served.http as client:
        answer = await client.post(
            "/v1/files",
            content=body,
            headers={
                "authorization": f"Bearer {served.keys['acme']}",
                "content-type": "multipart/form-data; boundary=b",
            },
        )
    assert answer.status_code == 400


async def test_a_tenant_keeps_so_many_files_and_bytes(served: Served, tmp_path: Path) -> None:
    answers = [await upload(served, b" " * (MOST_BYTES - 10)) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 400]
    assert error_of(answers[3])[1] == "request_exceeds_limit"
    assert answers[3].json()["error"]["limit"]["name"] == "file_bytes"

    async with served.sdk() as client:
        await client.files.delete(answers[0].json()["id"])
    many = [await upload(served, b"{}") for _ in range(4)]
    assert [answer.status_code for answer in many] == [200, 200, 200, 400]
    assert many[3].json()["error"]["limit"]["name"] == "files"
    assert len(left(tmp_path)) == 2 * 5


async def test_more_lines_than_a_batch_may_have_are_refused(served: Served, tmp_path: Path) -> None:
    assert (await upload(served, b"1\n" * MAX_LINES)).status_code == 200
    for content in (b"1\n" * (MAX_LINES + 1), b"\n" * 2 * MAX_LINES + b"\n"):
        refused = await upload(served, content)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "file")
    assert len(left(tmp_path)) == 2


async def test_what_has_expired_is_swept(served: Served, tmp_path: Path) -> None:
    async with served.sdk() as client:
        kept = await client.files.create(file=lines(1), purpose="batch")
    await served.store.zadd("fl:batches:{acme}:expiring", {kept.id: 1})
    old = tmp_path / "files" / ".partial" / "left-behind"
    old.write_bytes(b"half")
    os.utime(old, (1, 1))

    await served.resources.batches.runner.sweep()

    assert left(tmp_path) == []
    assert not await served.store.exists("fl:batches:{acme}:files:acme", "fl:batches:{acme}:bytes:acme")


async def test_one_sweep_forgets_all_that_has_expired_but_what_cannot_be_deleted(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expiring, (stuck, *others) = "fl:batches:{acme}:expiring", [new_id() for _ in range(2 * SWEPT_AT_ONCE + 1)]
    (tmp_path / "files" / contents(stuck)).mkdir(parents=True)  # deleting it as a file fails
    await served.store.zadd("fl:files:roots", {"acme": 1})
    await served.store.zadd(expiring, {stuck: 1} | dict.fromkeys(others, 2))

    await served.resources.batches.runner.sweep()

    assert await served.store.zrange(expiring, 0, -1) == [stuck.encode()]
    assert "1 expired files cannot be deleted" in caplog.text


async def test_a_file_may_be_larger_than_what_bodies_may_hold(valkey_url: str, tmp_path: Path) -> None:
    bounds = folder_settings(valkey_url, tmp_path, tenant_body_bytes=2**20, body_bytes=2**20)
    async with gateway(bounds) as served:
        await served.tenant()
        content = lines(30_000)
        assert len(content) > 3 * 2**20

        kept = await upload(served, content)

        assert kept.status_code == 200, kept.text
        assert kept.json()["bytes"] == len(content)
        assert served.resources.ports.bodies.held_bytes == 0


async def test_anthropics_sdk_learns_that_its_files_are_not_served(served: Served) -> None:
    async with anthropic.AsyncAnthropic(base_url=served.url, api_key=served.keys["acme"], max_retries=0) as client:
        calls: list[Callable[[], Awaitable[Any]]] = [
            partial(client.beta.files.list),
            partial(client.beta.files.retrieve_metadata, "file_1"),
            partial(client.models.retrieve, "x"),
        ]
        for call in calls:
            with pytest.raises(anthropic.NotFoundError) as refused:
                await call()
            body: Any = refused.value.body
            assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
    async with anthropic.AsyncAnthropic(base_url=served.url, api_key="fl-x", max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.beta.files.list()
