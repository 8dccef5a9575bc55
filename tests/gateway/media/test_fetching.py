"""Media by URL: fetched from allowed hosts and addresses alone, within bounds of size, time and concurrency."""

import asyncio
import gzip
import logging
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.body_budget import BodyBudget, BodyHold
from fairlane.gateway.media.addresses import AllowedHosts
from fairlane.gateway.media.fetcher import Fetcher, Resolve, Slots
from fairlane.gateway.media.reader import Media, MediaItem, MediaLimits, MediaSource
from fairlane.scheduler.protocol.settings import Networks
from tests.gateway.media import files
from tests.gateway.media.conftest import NAME, MediaHost, answer, media_host, moved
from tests.support.gateway.served import until

pytestmark = pytest.mark.anyio
PARAM = "messages.0.content.1.image_url.url"
PNG = files.png()
LOOPBACK = ("127.0.0.0/8",)
NO_ADDRESS = f"`{PARAM}` cannot be fetched: its host has no public address."


class Names:
    """A name server that answers in turn; the last answer stays."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers, self.asked = list(answers), 0

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def media(
    *hosts: str,
    networks: Sequence[str] = LOOPBACK,
    resolve: Resolve | None = None,
    tls: ssl.SSLContext | None = None,
    max_bytes: int = 1_000_000,
    timeout_s: float = 30.0,
) -> Media:
    found = resolve or Names(["127.0.0.1"])
    fetcher = Fetcher(AllowedHosts(hosts), Networks(networks), max_bytes, timeout_s, found, tls)
    return Media(MediaLimits(), fetcher)


def at(host: MediaHost, **changed: object) -> Media:
    return media(f"http://{NAME}:{host.port}", **changed)  # type: ignore[arg-type]


async def read(by: Media, url: str, tenant: str = "acme") -> MediaItem:
    (item,) = await by.read([MediaSource(url, PARAM)], tenant, lambda _: None)
    return item


async def refused(by: Media, url: str) -> str:
    with pytest.raises(ApiError) as error:
        await read(by, url)
    assert (error.value.status, error.value.param) == (400, PARAM)
    assert error.value.message.startswith(f"`{PARAM}` ")
    assert "127.0.0.1" not in error.value.message
    assert NAME not in error.value.message
    return error.value.message


async def test_a_medium_is_fetched(host: MediaHost, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    host.answers["/a%20b?c=%C3%BC"] = answer(PNG)
    item = await read(at(host), f"http://{NAME.upper()}.:{host.port}/a b?c=ü#part")
    assert (item.data, item.mime) == (PNG, "image/png")
    (head,) = host.requests
    assert head.split("\r\n")[:2] == ["GET /a%20b?c=%C3%BC HTTP/1.1", f"host: {NAME}:{host.port}"]
    assert "accept-encoding: identity" in head
    assert not {"cookie", "authorization", "referer"}.intersection(line.split(":")[0] for line in head.split("\r\n"))
    assert NAME not in caplog.text
    assert "a%20b" not in caplog.text


async def test_proxies_of_the_environment_are_not_used(host: MediaHost, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    host.answers["/"] = answer(PNG)
    assert (await read(at(host), f"http://{NAME}:{host.port}")).data == PNG


@pytest.mark.parametrize(
    "body",
    [
        answer(PNG, "x: y"),  # until the connection closes
        answer(b"3\r\n\x89PN\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(PNG) - 3, PNG[3:]), "transfer-encoding: chunked"),
        answer(PNG, "upgrade: h2,h2c", "connection: upgrade, close", f"content-length: {len(PNG)}"),
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\ncontent-encoding: gzip\r\n\r\n" + answer(PNG),
        answer(PNG) + answer(b"more"),
        answer(PNG, f"content-length: {len(PNG)}", "content-type: text/html", "content-encoding: identity"),
        b"HTTP/1.0 200 OK\r\n\r\n" + PNG,
    ],
)
async def test_responses_are_read_as_hosts_send_them(host: MediaHost, body: bytes) -> None:
    host.answers["/"] = body
    assert (await read(at(host), f"http://{NAME}:{host.port}/")).data == PNG


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (answer(PNG, f"content-length: {len(PNG) + 1}"), "closed before the end"),
        (answer(PNG, f"content-length: {len(PNG)}, 5"), "HTTP/1.1"),
        (answer(PNG, f"content-length: {len(PNG)}", "transfer-encoding: chunked"), "HTTP/1.1"),
        (answer(b"5\r\nabc", "transfer-encoding: chunked"), "closed before the end"),
        (answer(b"zz\r\nabc", "transfer-encoding: chunked"), "HTTP/1.1"),
        (answer(b"1\r\nx\r\n" * 50_000, "transfer-encoding: chunked"), "too small chunks"),
        (answer(PNG[:20], "content-length: 20"), "no size"),
        (answer(gzip.compress(PNG), "content-encoding: gzip", "x: y"), "compresses"),
        (answer(gzip.compress(bytes(10**7)), "x: y"), "must be a PNG"),
        (answer(PNG, "content-length: 1000001"), "larger than 1000000 bytes"),
        (answer(bytes(1_000_001), "x: y"), "larger than 1000000 bytes"),
        (answer(b"", "content-length: 0", status="404 internal name"), "with status 404."),
        (answer(PNG, status="206 Partial"), "with status 206."),
        (answer(b"", status="204 None"), "with status 204."),
        (answer(b"", "upgrade: x", "connection: upgrade", status="101 Switching"), "HTTP/1.1"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000, "too many headers"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 10_000, "too many headers"),
        (b"HTTP/1.1 200 OK\r\na: " + b"b" * 100_000, "too many headers"),
        (b"", "closed before the end"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "HTTP/1.1"),
        (answer(files.png(60_000, 60_000)), "60000 x 60000 pixels"),
    ],
)
async def test_other_responses_are_refused(host: MediaHost, body: bytes, reason: str) -> None:
    host.answers["/"] = body
    assert reason in await refused(at(host), f"http://{NAME}:{host.port}/")


@pytest.mark.parametrize(
    ("hosts", "url"),
    [
        ((), "https://images.example.com/"),
        (("images.example.com",), "https://example.com/"),
        (("images.example.com",), "https://images.example.com.evil.example/"),
        (("images.example.com",), "https://ximages.example.com/"),
        (("images.example.com",), "http://images.example.com/"),
        (("images.example.com",), "https://images.example.com:8443/"),
        (("images.example.com",), "https://images.example.com:99999/"),
        (("images.example.com:8443",), "https://images.example.com/"),
        (("http://images.example.com",), "https://images.example.com/"),
        (("*.example.com",), "https://example.com/"),
        (("*.example.com",), "https://.example.com/"),
        (("*.example.com",), "https://badexample.com/"),
        (("*",), "http://example.com/"),
        (("*",), "https://example.com:22/"),
        (("*",), "ftp://example.com/"),
        (("*",), "file:///etc/passwd"),
        (("*",), "file://example.com/etc/passwd"),
        (("*",), "gopher://example.com/_x"),
        (("*",), "unix:///run/x"),
        (("*",), "javascript:alert(1)"),
        (("*",), "//example.com/"),
        (("*",), "/etc/passwd"),
        (("*",), "example.com/a.png"),
        (("*",), "https:///a.png"),
        (("*",), ""),
        (("*",), "https://user@example.com/"),
        (("*",), "https://user:pass@example.com/"),
        (("*",), "https://images.example.com\\@127.0.0.1/"),
        (("images.example.com",), "https://127.0.0.1#@images.example.com/"),
        (("images.example.com",), "https://127.0.0.1?@images.example.com/"),
        (("*",), "https://exa%6dple.com/"),
        (("*",), "https://exa mple.com/"),
        (("*",), "https://a..example.com/"),
        (("*",), "https://\uff11\uff12\uff17.\uff10.\uff10.\uff11/"),
        (("*",), "https://[fe80::1%25eth0]/"),
        (("*",), "https://[::1/"),
        (("*",), "https://0177.0.0.1/"),
        (("*",), "https://example.com/\r\nx: y"),
        (("*",), "https://example.com\x00.evil.example/"),
        (("*",), "https://example.com/\ud800"),
        (("*",), "https://ex\ud800ample.com/"),
        (("*",), f"https://example.com/{'a' * 8_192}"),
    ],
    ids=lambda each: ascii(each)[:60],
)
async def test_other_urls_are_refused_without_a_lookup(hosts: tuple[str, ...], url: str) -> None:
    names = Names(["127.0.0.1"])
    await refused(media(*hosts, resolve=names), url)
    assert names.asked == 0


async def test_the_refusal_names_the_setting() -> None:
    assert "`gateway.media_hosts`" in await refused(media(), "https://example.com/")
    assert "`gateway.media_hosts`" in await refused(media("a.example"), "https://example.com/")


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("images.example.com", "https://images.example.com/"),
        ("images.example.com", "HTTPS://IMAGES.example.com.:443/"),
        ("*.example.com", "https://a.b.example.com/"),
        ("http://*.example.com:8080", "http://a.example.com:8080/"),
        ("xn--bcher-kva.example", "https://bücher.example/"),
        ("*", "https://bücher.example/"),
    ],
)
async def test_allowed_hosts_are_looked_up(entry: str, url: str) -> None:
    names = Names(["10.0.0.1"])
    assert await refused(media(entry, resolve=names), url) == NO_ADDRESS
    assert names.asked == 1


LOCAL = (
    "2130706433", "0x7f.1", "0x7f000001", "127.1", "127.0.0.1", "127.0.0.1.", "0", "0.0.0.0",  # noqa: S104
    "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]",
    "169.254.169.254", "[fd00:ec2::254]", "[fe80::1]", "localhost", "localhost.",
)  # fmt: skip


@pytest.mark.parametrize("host", LOCAL)
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_notations_of_local_addresses_are_refused(scheme: str, host: str) -> None:
    by = Media(MediaLimits(hosts=("*", "http://*"), networks=Networks(LOOPBACK)))  # with the system's lookups
    assert await refused(by, f"{scheme}://{host}/") == NO_ADDRESS


PRIVATE = (
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200",
    "0.0.0.0", "0.1.2.3", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "192.0.0.192",  # noqa: S104
    "192.0.2.1",
    "198.18.0.1", "198.51.100.1", "203.0.113.1", "168.63.129.16", "192.88.99.1",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::7f00:1", "64:ff9b::a00:1", "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a00:1", "2002:a00:1::", "2002:808:808::", "2001:0:a00:1::", "2001:db8::1", "3fff::1", "100::1",
    "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%1", "fec0::1", "ff02::1",
)  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
async def test_private_addresses_are_refused_like_unknown_names(address: str) -> None:
    def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    by = media("*", resolve=Names(["8.8.8.8", address]))
    assert await refused(by, "https://example.com/") == NO_ADDRESS
    assert await refused(media("*", resolve=unknown), "https://example.com/") == NO_ADDRESS


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"])
async def test_public_addresses_are_connected_to(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connected = []

    async def connect(host: str, port: int, **more: object) -> None:
        connected.append((host, port, more["server_hostname"]))
        raise OSError

    monkeypatch.setattr(asyncio, "open_connection", connect)
    assert "cannot be connected to" in await refused(media("*", resolve=Names([address])), "https://example.com/")
    assert connected == [(address, 443, "example.com")]


async def test_networks_of_the_operator_are_for_hosts_with_a_name(host: MediaHost) -> None:
    host.answers["/"] = answer(PNG)
    url = f"http://{NAME}:{host.port}/"
    assert (await read(media(f"http://*.example.com:{host.port}"), url)).data == PNG
    assert (await read(media(f"http://127.0.0.1:{host.port}"), f"http://127.0.0.1:{host.port}/")).data == PNG
    assert await refused(media(f"http://*:{host.port}"), url) == NO_ADDRESS
    assert await refused(at(host, networks=["10.0.0.0/8"]), url) == NO_ADDRESS
    assert await refused(at(host, resolve=Names(["127.0.0.1", "10.0.0.1"])), url) == NO_ADDRESS


async def test_a_second_answer_of_the_name_server_changes_nothing(host: MediaHost) -> None:
    host.answers["/"] = answer(PNG)
    names = Names(["127.0.0.1"], ["10.0.0.1"])
    by = at(host, resolve=names)
    assert (await read(by, f"http://{NAME}:{host.port}/")).data == PNG
    assert names.asked == 1
    assert await refused(by, f"http://{NAME}:{host.port}/") == NO_ADDRESS


async def test_redirects_are_followed(host: MediaHost) -> None:
    host.answers |= {
        "/": moved("/a", 301),
        "/a": moved(f"http://{NAME}:{host.port}/b", 307),
        "/b": moved("c?d#e", 308),
        "/c?d": answer(PNG),
        "/4": moved("/", 303),
    }
    names = Names(["127.0.0.1"])
    assert (await read(at(host, resolve=names), f"http://{NAME}:{host.port}/")).data == PNG
    assert names.asked == 4
    assert "more than 3 times" in await refused(at(host), f"http://{NAME}:{host.port}/4")


@pytest.mark.parametrize(
    "to",
    [
        "https://other.example.com/",
        "http://169.254.169.254/latest/meta-data",
        "http://127.0.0.1/",
        "http://[::1]/",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
        "data:image/png;base64,AAAA",
        "//user@images.example.com/",
        "https://images.example.com:22/",
        "/" + "a" * 8_192,
    ],
    ids=lambda each: each[:40],
)
async def test_redirects_are_checked(host: MediaHost, to: str) -> None:
    host.answers["/"] = moved(to)
    names = Names(["127.0.0.1"])
    await refused(at(host, resolve=names), f"http://{NAME}:{host.port}/")
    assert names.asked == 1


async def test_addresses_after_a_redirect_are_checked(host: MediaHost) -> None:
    host.answers["/"] = moved("/a")
    by = at(host, resolve=Names(["127.0.0.1"], ["169.254.169.254"]))
    assert await refused(by, f"http://{NAME}:{host.port}/") == NO_ADDRESS
    assert len(host.requests) == 1


async def test_tls_is_for_the_name(certificate: Path) -> None:
    trusted = ssl.create_default_context(cafile=certificate)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(certificate)
    async with media_host(own) as host:
        host.answers["/"] = answer(PNG)
        url = f"https://{NAME}:{host.port}/"
        assert (await read(media(f"{NAME}:{host.port}", tls=trusted), url)).data == PNG
        assert host.names == [NAME]
        numeric = f"https://127.0.0.1:{host.port}/"
        assert (await read(media(f"127.0.0.1:{host.port}", tls=trusted), numeric)).data == PNG
        other = f"https://other.example.com:{host.port}/"
        assert "connected" in await refused(media(f"other.example.com:{host.port}", tls=trusted), other)
        assert "connected" in await refused(media(f"{NAME}:{host.port}"), url)  # public authorities alone
        assert len(host.requests) == 2


async def test_other_addresses_are_tried(host: MediaHost) -> None:
    host.answers["/"] = answer(PNG)
    url = f"http://{NAME}:{host.port}/"
    names = Names(["127.1.2.3", "127.0.0.1"])  # the host listens on the second one alone
    assert (await read(at(host, resolve=names), url)).data == PNG
    assert "connected" in await refused(at(host, resolve=Names(["127.1.2.3"])), url)


async def silent(writer: asyncio.StreamWriter) -> None:
    """Send nothing."""


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(bytes(1_000))
        await writer.drain()
        await asyncio.sleep(0.01)


async def endless_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"a: b\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("behave", [silent, endless, endless_head])
async def test_slow_hosts_end_at_the_time_limit(host: MediaHost, behave: object) -> None:
    host.answers["/"] = behave  # type: ignore[assignment]
    by = at(host, timeout_s=0.2, max_bytes=10**9)
    assert "within 0.2 s" in await refused(by, f"http://{NAME}:{host.port}/")
    async with asyncio.timeout(10):
        await host.left.wait()


async def flood(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(bytes(2**20))
        await writer.drain()


async def test_a_flood_ends_at_the_size_limit(host: MediaHost) -> None:
    host.answers["/"] = flood
    assert "larger than" in await refused(at(host), f"http://{NAME}:{host.port}/")
    async with asyncio.timeout(10):
        await host.left.wait()


async def test_fetched_bytes_count_for_the_tenant_as_they_arrive(host: MediaHost) -> None:
    host.answers |= {"/": flood, "/png": answer(PNG)}
    budget = BodyBudget(most_bytes=10**9, most_tenant_bytes=300_000)
    hold = BodyHold(budget)
    hold.claim("acme", 0)
    by = at(host, max_bytes=10**9)
    await by.read([MediaSource(f"http://{NAME}:{host.port}/png", PARAM)], "acme", hold.add)
    assert budget.of_tenant("acme") == len(PNG)
    with pytest.raises(ApiError) as error:
        await by.read([MediaSource(f"http://{NAME}:{host.port}/", PARAM)], "acme", hold.add)
    assert error.value.code == "request_too_large"
    assert 200_000 < budget.of_tenant("acme") <= 300_000
    hold.release()
    assert budget.held_bytes == 0


async def test_many_media_are_fetched_in_order_and_a_failure_ends_all(host: MediaHost) -> None:
    host.answers |= {f"/{index}": answer(files.png(index)) for index in range(1, 10)} | {"/silent": silent}
    sources = [MediaSource(f"http://{NAME}:{host.port}/{index}", f"image.{index}") for index in range(1, 10)]
    by = at(host)
    items = await by.read(sources, "acme", lambda _: None)
    assert [each.data for each in items] == [files.png(index) for index in range(1, 10)]
    ends = [MediaSource(f"http://{NAME}:{host.port}/silent", "silent"), MediaSource("x", "wrong"), *sources]
    with pytest.raises(ApiError) as error:
        await by.read(ends, "acme", lambda _: None)
    assert error.value.param == "wrong"


async def test_a_tenant_with_slow_hosts_delays_itself_alone(host: MediaHost) -> None:
    host.answers |= {"/silent": silent, "/": answer(PNG)}
    by = at(host, timeout_s=0.5)
    slow = [MediaSource(f"http://{NAME}:{host.port}/silent", PARAM)] * 8
    reading = asyncio.create_task(by.read(slow, "slow", lambda _: None))
    await until(lambda: len(host.requests) == 8)
    assert (await read(by, f"http://{NAME}:{host.port}/")).data == PNG
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert (await read(by, f"http://{NAME}:{host.port}/", tenant="slow")).data == PNG


async def test_a_tenant_without_a_slot_is_told_to_retry(host: MediaHost) -> None:
    host.answers["/"] = answer(PNG)
    slots = Slots(4, 1)
    fetcher = Fetcher(
        AllowedHosts([f"http://{NAME}:{host.port}"]),
        Networks(LOOPBACK),
        10**6,
        0.1,
        Names(["127.0.0.1"]),
        _fetches=slots,
    )
    release = await slots.acquire("acme")
    with pytest.raises(ApiError) as error:
        await read(Media(MediaLimits(), fetcher), f"http://{NAME}:{host.port}/")
    assert (error.value.code, error.value.retry_after_s) == ("concurrency_limit_exceeded", 1.0)
    assert (await read(Media(MediaLimits(), fetcher), f"http://{NAME}:{host.port}/", tenant="globex")).data == PNG
    release()
    assert (await read(Media(MediaLimits(), fetcher), f"http://{NAME}:{host.port}/")).data == PNG


async def test_slow_lookups_keep_their_slots(host: MediaHost) -> None:
    host.answers["/"] = answer(PNG)
    answered = threading.Event()

    def slow(name: str, port: int) -> Sequence[str]:
        if name.startswith("slow"):
            answered.wait(30)
        return ["127.0.0.1"]

    fetcher = Fetcher(
        AllowedHosts([f"http://*.example.com:{host.port}"]), Networks(LOOPBACK), 10**6, 0.2, slow, _lookups=Slots(4, 1)
    )
    by = Media(MediaLimits(), fetcher)
    url = f"http://{NAME}:{host.port}/"
    try:
        assert "within" in await refused(by, f"http://slow.example.com:{host.port}/")
        assert "within" in await refused(by, url)  # its only lookup is still running
        assert (await read(by, url, tenant="globex")).data == PNG
    finally:
        answered.set()
    async with asyncio.timeout(10):
        while True:
            try:
                assert (await read(by, url)).data == PNG
                break
            except ApiError:
                continue
