"""Forms with a file: the same however they come, and nothing but a 4xx where they are broken."""

from contextlib import suppress

import hypothesis.strategies as st
import pytest
from hypothesis import given

from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.multipart import FormReader

CONTENT_TYPE = b'multipart/form-data; boundary="b"'
WHOLE = (
    b"--b\r\ncontent-disposition: form-data; name=purpose\r\n\r\nbatch\r\n"
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="../x"\r\ncontent-type: text/plain\r\n\r\n'
    b"{}\r\n--c\r\n\r\n--b--\r\n"
)


def read(parts: list[bytes]) -> tuple[FormReader, bytes]:
    """What comes of a body in such parts."""
    reader = FormReader(CONTENT_TYPE, max_file_bytes=64)
    return reader, b"".join([reader.push(part) for part in parts])


@given(cuts=st.lists(st.integers(0, len(WHOLE)), max_size=30).map(sorted))
def test_a_form_is_the_same_in_whatever_parts_it_comes(cuts: list[int]) -> None:
    ends = [*cuts, len(WHOLE)]
    reader, content = read([WHOLE[start:end] for start, end in zip([0, *cuts], ends, strict=True)])

    assert (content, reader.is_whole) == (b"{}\r\n--c\r\n", True)
    assert (reader.form.fields, reader.form.file_name, reader.form.file_bytes) == ({"purpose": "batch"}, "../x", 9)


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=20),
            st.sampled_from([b"--b\r\n", b"\r\n--b\r\n", b"\r\n--b--", b"\r\n", b"\r\n\r\n", b"x" * 100]),
            st.sampled_from([b'content-disposition: form-data; name="file"; filename="f"', b"name", b": ", b";" * 50]),
            st.sampled_from(
                [b'content-disposition: form-data; name="a"', b"content-disposition: form-data; name*=u''"]
            ),
        ),
        max_size=20,
    )
)
def test_what_is_no_form_is_a_refusal_and_nothing_else(parts: list[bytes]) -> None:
    with suppress(ApiError):
        read(parts)


@pytest.mark.parametrize(
    "content_type",
    [
        b"",
        b"application/json",
        b"multipart/form-data",
        b"multipart/form-data; boundary=",
        b"multipart/mixed; boundary=b",
        b"multipart/form-data; boundary=" + b"b" * 5_000,
    ],
)
def test_a_body_of_another_type_is_refused(content_type: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        FormReader(content_type, max_file_bytes=64)
    assert (refused.value.status, refused.value.param) == (400, "content-type")


@pytest.mark.parametrize(
    ("part", "status"),
    [
        (b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n' + b"x" * 65, 413),
        (b'--b\r\ncontent-disposition: form-data; name="a"\r\n\r\n' + b"x" * 2_000, 400),
        (b"--b\r\nx: " + b"y" * 10_000, 400),
        (b"--b\r\n" + b"x: y\r\n" * 1_000, 400),
        (b'--b\r\ncontent-disposition: form-data; name="a"\r\n\r\n\r\n' * 40, 400),
    ],
)
def test_each_part_has_its_bounds(part: bytes, status: int) -> None:
    with pytest.raises(ApiError) as refused:
        read([part])
    assert refused.value.status == status
