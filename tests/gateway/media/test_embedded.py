"""Media that requests contain: base64 within bounds, formats and pixels by the first bytes."""

import base64
import gc
import hashlib
import io
import random
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.body_budget import BodyBudget, BodyHold
from fairlane.gateway.media.base64s import decode
from fairlane.gateway.media.formats import Kind, format_of
from fairlane.gateway.media.reader import Media, MediaItem, MediaLimits, MediaSource
from fairlane.gateway.media.refusal import MediaRefused
from tests.gateway.media import files
from tests.support.gateway.served import until

pytestmark = pytest.mark.anyio
PARAM = "messages.0.content.1.image_url"
IMAGES = {
    "image/png": files.png,
    "image/jpeg": files.jpeg,
    "image/gif": files.gif,
    "image/webp": files.webp_lossy,
    "image/webp; lossless": files.webp_lossless,
    "image/webp; extended": files.webp_extended,
}
SOUNDS = {
    "audio/wav": files.WAV,
    "audio/mpeg": files.MP3,
    "audio/mpeg; tagged": files.TAGGED_MP3,
    "audio/flac": files.FLAC,
    "audio/ogg": files.OGG,
}


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def read(text: str, *, kind: Kind | None = None, is_base64: bool = False, **limits: int) -> MediaItem:
    media = Media(replace(MediaLimits(), **limits))  # type: ignore[arg-type]
    (item,) = await media.read([MediaSource(text, PARAM, kind, is_base64)], "acme", lambda _: None)
    return item


async def refused(text: str, *, kind: Kind | None = None, **limits: int) -> str:
    with pytest.raises(ApiError) as error:
        await read(text, kind=kind, **limits)  # type: ignore[arg-type]
    assert (error.value.status, error.value.param) == (400, PARAM)
    assert error.value.message.startswith(f"`{PARAM}` ")
    return error.value.message


@pytest.mark.parametrize(
    ("mime", "data"), [*((mime, make()) for mime, make in IMAGES.items()), *SOUNDS.items()], ids=lambda each: each[:20]
)
async def test_the_format_is_that_of_the_bytes(mime: str, data: bytes) -> None:
    for url in (f"data:text/html;base64,{encoded(data)}", f"DATA:;charset=x;BASE64,{encoded(data)}"):
        item = await read(url)
        assert (item.mime, item.data) == (mime.split(";")[0], data)
        assert item.kind == mime.split("/")[0]
        assert item.sha256 == hashlib.sha256(data).hexdigest()


def lines(data: bytes) -> str:
    return base64.encodebytes(data).decode().replace("\n", " \r\n\t")


def url_safe(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@pytest.mark.parametrize("size", [100, 101, 102, 98_303, 98_304, 98_305, 1_000_000])
@pytest.mark.parametrize("write", [encoded, lines, url_safe])
async def test_base64_is_read_as_sdks_send_it(write: Callable[[bytes], str], size: int) -> None:
    data = (files.png() + random.Random(size).randbytes(size))[:size]
    assert (await read(write(data), is_base64=True)).data == data


@pytest.mark.parametrize(
    "text",
    [
        "data:image/png,abc",
        "data:image/png;base64",
        "data:" + "x" * 500 + ";base64,AAAA",
        "data:image/png;base64,A",
        "data:image/png;base64,AA=A",
        "data:image/png;base64,AAAA=",
        "data:image/png;base64,AAAA====",
        "data:image/png;base64,====",
        "data:image/png;base64,AA==AAAA",
        "data:image/png;base64,AA!A",
        "data:image/png;base64,AAAé",
        "data:image/png;base64,AAA\ud800",
        f"data:image/png;base64,{'A' * 65_534}=={'A' * 65_536}",
        f"data:image/png;base64,{'A' * 65_532}AA==AAAA",
    ],
    ids=lambda each: ascii(each[:60]),
)
async def test_other_data_urls_are_refused(text: str) -> None:
    assert "base64" in await refused(text)


@pytest.mark.parametrize("data", [b"", b"<svg/>", b"MZ\x90\0", b"%PDF-1.7", b"\xff\xf1\x50\x80", files.WAV[:11]])
async def test_other_formats_are_refused(data: bytes) -> None:
    assert "must be a PNG" in await refused(f"data:image/png;base64,{encoded(data)}")


async def test_a_field_takes_its_own_kind() -> None:
    sound = f"data:image/png;base64,{encoded(files.WAV)}"
    assert "must be a PNG, JPEG, WebP or GIF image" in await refused(sound, kind="image")
    assert "must be a WAV" in await refused(f"data:audio/wav;base64,{encoded(files.png())}", kind="audio")
    assert (await read(sound, kind="audio")).mime == "audio/wav"


@pytest.mark.parametrize("write", [encoded, lines])
async def test_the_size_is_bounded(write: Callable[[bytes], str]) -> None:
    data = files.png() + b"\0" * 50_000
    assert (await read(f"data:;base64,{write(data)}", max_bytes=len(data))).data == data
    assert "larger than" in await refused(f"data:;base64,{write(data)}", max_bytes=len(data) - 1)


async def test_what_is_far_too_large_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlane.gateway.media.base64s.decode", None)
    assert "larger than" in await refused("data:;base64," + "A" * 200_000, max_bytes=100_000)


@pytest.mark.parametrize("make", IMAGES.values(), ids=IMAGES)
async def test_pixels_are_bounded_by_the_header(make: Callable[[int, int], bytes]) -> None:
    for width, height in ((60_000, 60_000), (16_000, 16_000), (16_383, 3_052)):
        try:
            url = f"data:;base64,{encoded(make(width, height))}"
        except (OverflowError, ValueError):
            continue
        if make in (files.webp_lossy, files.webp_lossless) and width > 16_383:
            continue  # 14 bits
        assert f"{width} x {height} pixels" in await refused(url, max_pixels=width * height - 1)
        await read(url, max_pixels=width * height)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a second frame", files.jpeg(1, 1, before=files.frame(60_000, 60_000))),
        ("a lossless frame", files.jpeg(1, 1, before=files.frame(60_000, 60_000, 0xC3))),
        ("bytes between segments", files.jpeg(60_000, 60_000, before=b"\0\xff\0junk\xff\xff")),
        ("a frame larger than the screen", files.gif(1, 1, (0, 0, 60_000, 60_000))),
        ("a frame beyond the screen", files.gif(1, 1, (59_999, 59_999, 1, 1))),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
async def test_pixels_cannot_be_hidden(name: str, data: bytes) -> None:
    assert "60000 x 60000 pixels" in await refused(f"data:;base64,{encoded(data)}")


# By format: how much of a file's end is not needed for its size.
TAILS: Mapping[object, int] = {
    files.png: 50,
    files.jpeg: 20,
    files.gif: 20,
    files.webp_lossy: 8,
    files.webp_lossless: 8,
}


@pytest.mark.parametrize("make", IMAGES.values(), ids=IMAGES)
async def test_truncated_headers_are_refused(make: Callable[[], bytes]) -> None:
    whole = make()
    for end in range(12, len(whole) - TAILS.get(make, 1), 3):
        assert "no size" in await refused(f"data:;base64,{encoded(whole[:end])}")


@pytest.mark.parametrize(
    "data", [files.png(0, 3), files.png(3, 0), files.jpeg(2, 0), files.gif(0, 0, (0, 0, 0, 0)), files.webp_lossy(0, 1)]
)
async def test_images_without_pixels_are_refused(data: bytes) -> None:
    assert "no size" in await refused(f"data:;base64,{encoded(data)}")


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8" + b"\xff\xe0\x00\x02" * 5_000_000,
        b"\xff\xd8" + b"\xff" * 20_000_000,
        b"\xff\xd8\xff" + b"\0" * 20_000_000,
        b"\xff\xd8" + b"\xff\0" * 10_000_000,
        b"\xff\xd8" + b"\xff\xd0" * 10_000_000,
        b"\xff\xd8\xff\xe0\0\0" * 100,
        b"GIF89a" + b"\0" * 7 + b"\x21\xff" + b"\x01\0" * 10_000_000,
        b"GIF89a" + b"\0" * 7 + b"\x21\xff" + b"\x01\x01" * 10_000_000,
        b"GIF89a" + b"\0" * 7 + b"\x3b" * 100,
    ],
    ids=lambda each: ascii(each[:20]),
)
@pytest.mark.timeout(20)
def test_endless_headers_cost_little(data: bytes) -> None:
    with pytest.raises(MediaRefused, match="no size"):
        format_of(data, "image", 10**9)


STARTS = [make()[:cut] for make in IMAGES.values() for cut in (12, 20, 40)]


@given(st.sampled_from(STARTS), st.binary(max_size=200))
@example(b"\xff\xd8\xff", b"\xc0")
def test_any_bytes_are_read_or_refused(start: bytes, rest: bytes) -> None:
    try:
        kind, mime = format_of(start + rest, None, 100)
    except MediaRefused:
        return
    assert mime.startswith(f"{kind}/")


@given(st.data(), st.sampled_from(list(IMAGES.values())))
def test_any_changed_file_is_read_or_refused(data: st.DataObject, make: Callable[[], bytes]) -> None:
    changed = bytearray(make())
    for _ in range(data.draw(st.integers(0, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        format_of(bytes(changed), "image", 100)
    except MediaRefused:
        return


@given(st.text(alphabet=st.characters() | st.sampled_from("AZaz09+/-_= \n"), max_size=30))
def test_any_text_is_decoded_or_refused(text: str) -> None:
    try:
        decoded = decode(text, 0, 100)
    except MediaRefused:
        return
    squeezed = "".join(text.split()).rstrip("=").translate(str.maketrans("-_", "+/"))
    assert base64.b64encode(decoded).decode().rstrip("=")[:-1] == squeezed[:-1]


async def test_a_request_has_a_bound_of_media() -> None:
    url = f"data:;base64,{encoded(files.png())}"
    sources = [MediaSource(url, f"messages.{index}") for index in range(4)]
    media = Media(MediaLimits(max_media=3))
    assert len(await media.read(sources[:3], "acme", lambda _: None)) == 3
    with pytest.raises(ApiError, match="at most 3") as error:
        await media.read(sources, "acme", lambda _: None)
    assert error.value.param == "messages.3"


async def test_a_refused_request_is_freed_at_once() -> None:
    data = files.png() + b"\0" * 3_000_000
    large = MediaSource(f"data:;base64,{encoded(data)}", PARAM)
    sources = [large, large, MediaSource(f"data:;base64,{encoded(data[1:])}", PARAM)]
    media = Media(MediaLimits())
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(2):
            with pytest.raises(ApiError):
                await media.read(sources, "acme", lambda _: None)
        await until(lambda: tracemalloc.get_traced_memory()[0] < 1_000_000)  # a thread may just be ending
    finally:
        tracemalloc.stop()
        gc.enable()


async def test_decoded_bytes_count_for_the_tenant() -> None:
    data = files.png() + b"\0" * 60_000
    budget = BodyBudget(most_bytes=10**9, most_tenant_bytes=150_000)
    hold = BodyHold(budget)
    hold.claim("acme", 0)
    source = MediaSource(f"data:;base64,{encoded(data)}", PARAM)
    media = Media(MediaLimits())
    await media.read([source] * 2, "acme", hold.add)
    assert len(data) * 2 <= budget.of_tenant("acme") <= len(data) * 2 + 10
    other = BodyHold(budget)
    other.claim("acme", 0)
    for each, code in ((hold, "request_too_large"), (other, "concurrency_limit_exceeded")):
        with pytest.raises(ApiError) as error:
            await media.read([source], "acme", each.add)
        assert error.value.code == code
    other.release()
    hold.release()
    assert budget.held_bytes == 0


def test_sizes_are_those_that_an_image_library_reads() -> None:
    images = pytest.importorskip("PIL.Image")
    for name in ("PNG", "JPEG", "GIF", "WEBP"):
        for extra in ({}, {"lossless": True}, {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"}):
            made = io.BytesIO()
            images.new("RGB", (123, 45)).save(made, name, **extra)
            assert format_of(made.getvalue(), "image", 123 * 45)[0] == "image"
            with pytest.raises(MediaRefused, match="123 x 45"):
                format_of(made.getvalue(), "image", 123 * 45 - 1)
