"""Compressed bodies: read as they were before, within the bounds of any body."""

import gzip
import json
import random
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import brotli
import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from starlette.types import Message, Receive

from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.body import read_body
from fairlane.gateway.http.body_budget import PART_BYTES, BodyBudget, BodyHold
from fairlane.gateway.http.encodings import FREE_BYTES, MAX_STREAMS, Decoder, zstd
from fairlane.gateway.http.multipart import AROUND_BYTES, read_form
from tests.support.gateway.served import ASKED, CHAT, SAID, Served, error_of

pytestmark = pytest.mark.anyio

PATIENT_S = 10.0
MOST_BYTES = 8 * 2**20
LARGEST_STEP = PART_BYTES + 32 * 1024


def raw_deflate(content: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(content) + packer.flush()


def br(content: bytes) -> bytes:
    packed: bytes = brotli.compress(content, quality=4)
    return packed


Packer = Callable[[bytes], bytes]
PACKERS: list[tuple[str, Packer]] = [
    ("gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
    ("br", br),
    ("zstd", zstd.compress),
]
each_coding = pytest.mark.parametrize(("coding", "pack"), PACKERS)
packers = st.sampled_from(PACKERS)


def steps(coding: str, parts: list[bytes]) -> list[bytes]:
    """What each step of a decoder returns."""
    decoder, found = Decoder(coding), []
    for part in parts:
        decoder.feed(part)
        while decoded := decoder.step():
            found.append(decoded)
    decoder.finish()
    return found


def cut(content: bytes, places: list[int]) -> list[bytes]:
    ends = sorted(place % (len(content) + 1) for place in places)
    return [content[start:end] for start, end in zip([0, *ends], [*ends, len(content)], strict=True)]


def receiving(*parts: bytes) -> Receive:
    left = list(parts)

    async def receive() -> Message:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return receive


texts = st.builds(
    lambda seed, size, letters: bytes(random.Random(seed).choices(letters, k=size)),
    st.integers(),
    st.integers(0, 150_000),
    st.sampled_from([b"a", b'{"a": ', bytes(range(256))]),
)


@given(packer=packers, content=texts, places=st.lists(st.integers(0), max_size=20))
@settings(deadline=None, max_examples=60)
def test_a_body_is_the_same_in_whatever_parts_it_comes(
    packer: tuple[str, Packer], content: bytes, places: list[int]
) -> None:
    coding, pack = packer
    found = steps(coding, cut(pack(content), places))

    assert b"".join(found) == content
    assert max(map(len, found), default=0) <= LARGEST_STEP


@given(
    packer=packers,
    content=texts,
    end=st.integers(0),
    wrong=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=3),
    after=st.binary(max_size=40),
    places=st.lists(st.integers(0), max_size=5),
)
@settings(deadline=None, max_examples=100)
def test_a_broken_body_is_a_refusal_and_nothing_else(
    packer: tuple[str, Packer],
    content: bytes,
    end: int,
    wrong: list[tuple[int, int]],
    after: bytes,
    places: list[int],
) -> None:
    coding, pack = packer
    packed = bytearray(pack(content))
    for place, value in wrong:
        packed[place % len(packed)] = value
    broken = bytes(packed[: end % (len(packed) + 1)] + after)

    with suppress(ApiError):
        assert max(map(len, steps(coding, cut(broken, places))), default=0) <= LARGEST_STEP


@given(coding=st.sampled_from(["gzip", "deflate", "br", "zstd"]), parts=st.lists(st.binary(max_size=40), max_size=5))
def test_any_bytes_are_a_body_or_a_refusal(coding: str, parts: list[bytes]) -> None:
    with suppress(ApiError):
        steps(coding, parts)


@each_coding
@pytest.mark.parametrize("break_it", [lambda packed: packed[:-1], lambda packed: packed + b"x", lambda _: b"no"])
def test_what_is_cut_short_or_goes_on_is_broken(coding: str, pack: Packer, break_it: Packer) -> None:
    with pytest.raises(ApiError) as refused:
        steps(coding, [break_it(pack(b"abc" * 100))])

    assert (refused.value.status, refused.value.param) == (400, "content-encoding")


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("zstd", zstd.compress)])
def test_streams_may_follow_each_other_but_not_many(coding: str, pack: Packer) -> None:
    assert b"".join(steps(coding, [pack(b"a") + pack(b"b"), pack(b"c")])) == b"abc"
    assert b"".join(steps(coding, [pack(b"a") * MAX_STREAMS])) == b"a" * MAX_STREAMS
    with pytest.raises(ApiError):
        steps(coding, [pack(b"") * (MAX_STREAMS + 1)])


@each_coding
def test_little_of_a_bomb_is_decoded(coding: str, pack: Packer) -> None:
    decoder = Decoder(coding)
    decoder.feed(pack(bytes(20_000_000)))

    with pytest.raises(ApiError) as refused:
        deque(iter(decoder.step, b""))

    assert refused.value.code == "request_too_large"
    assert decoder.decoded_bytes <= 5 * FREE_BYTES


def test_a_window_is_bounded() -> None:
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    packed = packer.compress(random.Random(1).randbytes(2**24)) + packer.flush()

    with pytest.raises(ApiError, match="not valid zstd"):
        steps("zstd", [packed])


@each_coding
@pytest.mark.parametrize("has_arrived", [True, False])
async def test_what_is_decoded_counts_until_it_is_released(coding: str, pack: Packer, has_arrived: bool) -> None:
    content = b"some text " * 50_000
    packed = pack(content)
    budget = BodyBudget(most_bytes=2**30, most_tenant_bytes=2**30)
    hold, headers = BodyHold(budget), [(b"content-encoding", coding.encode())]
    assert hold.takes(len(packed))
    body = await read_body(
        receiving(packed),
        [*headers, (b"content-length", b"%d" % len(packed))],
        max_bytes=MOST_BYTES,
        timeout_s=PATIENT_S,
        arrived=packed if has_arrived else None,
        hold=hold,
        tenant="a",
    )

    assert body == content
    assert budget.of_tenant("a") == len(content)
    hold.release()
    assert budget.held_bytes == 0


@each_coding
async def test_what_the_budget_has_no_room_for_is_not_decoded(coding: str, pack: Packer) -> None:
    hold = BodyHold(BodyBudget(most_bytes=2**30, most_tenant_bytes=200_000))
    body = receiving(pack(b"some text " * 50_000))

    with pytest.raises(ApiError) as refused:
        await read_body(
            body,
            [(b"content-encoding", coding.encode())],
            max_bytes=MOST_BYTES,
            timeout_s=PATIENT_S,
            hold=hold,
            tenant="a",
        )

    assert refused.value.code == "concurrency_limit_exceeded"


async def test_a_part_that_the_budget_refused_is_not_waited_for() -> None:
    hold = BodyHold(BodyBudget(most_bytes=2**30, most_tenant_bytes=1_000))
    asked = 0

    async def receive() -> Message:
        nonlocal asked
        asked += 1
        assert asked == 1
        hold.takes(2_000)
        return {"type": "http.request", "body": b"", "more_body": True}

    with pytest.raises(ApiError) as refused:
        await read_body(
            receive,
            [(b"content-encoding", b"gzip")],
            max_bytes=MOST_BYTES,
            timeout_s=PATIENT_S,
            hold=hold,
            tenant="a",
        )

    assert refused.value.code == "concurrency_limit_exceeded"


@each_coding
@pytest.mark.parametrize(("size", "code"), [(100_000, None), (100_001, "request_too_large")])
async def test_the_bound_is_that_of_the_decoded_body(coding: str, pack: Packer, size: int, code: str | None) -> None:
    try:
        told = None
        await read_body(
            receiving(pack(b" " * size)),
            [(b"content-encoding", coding.encode())],
            max_bytes=100_000,
            timeout_s=PATIENT_S,
        )
    except ApiError as error:
        told = error.code
    assert told == code


async def test_a_body_that_decodes_to_nothing_ends_at_the_same_bound() -> None:
    nothing = b"\x00\x00\x00\xff\xff" * 1_000  # empty blocks

    async def receive() -> Message:
        return {"type": "http.request", "body": nothing, "more_body": True}

    with pytest.raises(ApiError) as refused:
        await read_body(receive, [(b"content-encoding", b"deflate")], max_bytes=50_000, timeout_s=PATIENT_S)

    assert refused.value.code == "request_too_large"


@each_coding
@pytest.mark.parametrize(("most_bytes", "code"), [(300_000, None), (299_999, "request_too_large")])
async def test_a_form_is_decoded_as_it_arrives(coding: str, pack: Packer, most_bytes: int, code: str | None) -> None:
    content = random.Random(1).randbytes(300_000)
    head = b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'
    packed = pack(head + content + b"\r\n--b--\r\n")
    budget, kept = BodyBudget(most_bytes=2**30, most_tenant_bytes=MOST_BYTES), bytearray()
    hold, told = BodyHold(budget), None

    async def sink(part: bytes) -> None:
        kept.extend(part)
        assert budget.held_bytes <= 2 * len(packed) + LARGEST_STEP

    try:
        await read_form(
            receiving(*cut(packed, [100, 100_000])),
            [(b"content-type", b"multipart/form-data; boundary=b"), (b"content-encoding", coding.encode())],
            sink,
            max_file_bytes=most_bytes,
            timeout_s=PATIENT_S,
            hold=hold,
            tenant="a",
        )
    except ApiError as error:
        told = error.code
    else:
        assert kept == content
        assert budget.held_bytes <= AROUND_BYTES
    assert told == code


@pytest.mark.parametrize("coding", ["", "identity", "gzip", "X-GZIP", "identity, gzip"])
async def test_a_chat_may_be_compressed(served: Served, coding: str) -> None:
    body = json.dumps(ASKED).encode()
    packed = gzip.compress(body) if "gzip" in coding.lower() else body

    answer = await served.post(CHAT, packed, content_encoding=coding)

    assert answer.json()["choices"][0]["message"]["content"] == SAID
    assert served.resources.ports.bodies.held_bytes == 0


@each_coding
async def test_a_request_is_the_same_in_every_encoding(served: Served, coding: str, pack: Packer) -> None:
    body = json.dumps(ASKED).encode()
    name = f"{coding}-{pack.__name__}"

    first = await served.post(CHAT, pack(body), content_encoding=coding, idempotency_key=name)
    again = await served.post(CHAT, body, idempotency_key=name)

    assert first.status_code == 200
    assert (again.json(), again.headers["idempotent-replayed"]) == (first.json(), "true")


@pytest.mark.parametrize("coding", ["compress", "gzip, br", "gzip, gzip", "zip", "é"])
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/files", "/tokenize"])
async def test_other_encodings_are_refused_naming_those_that_are_supported(
    served: Served, path: str, coding: str
) -> None:
    async with served.http as client:
        headers = [
            (b"authorization", f"Bearer {served.keys['acme']}".encode()),
            (b"content-encoding", coding.encode()),
            (b"content-type", b"multipart/form-data; boundary=b"),
        ]
        answer = await client.post(path, content=b"{}", headers=headers)

    assert answer.status_code == 415
    assert answer.headers["accept-encoding"] == "gzip, deflate, br, zstd"
    assert answer.json()["error"]["code"] == "unsupported_encoding"
    assert answer.json().get("type") == ("error" if path == "/v1/messages" else None)


async def test_a_bomb_is_too_large_and_counts_by_the_work_it_caused(served: Served) -> None:
    answer = await served.post(CHAT, gzip.compress(bytes(10_000_000)), content_encoding="gzip")

    assert error_of(answer) == (413, "request_too_large")
    assert served.resources.ports.bodies.held_bytes == 0


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_a_byte_order_mark_is_skipped(served: Served, path: str) -> None:
    body = json.dumps({**ASKED, "prompt": "a"} if path == CHAT else {"model": "tiny", "prompt": "a"}).encode()

    plain = await served.post(path, b"\xef\xbb\xbf" + body)
    packed = await served.post(path, gzip.compress(b"\xef\xbb\xbf" + body), content_encoding="gzip")
    large = await served.post(path, b"\xef\xbb\xbf" + b" " * 50_000 + body)

    assert {answer.status_code for answer in (plain, packed, large)} == {200}


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant()
    return fresh_gateway
