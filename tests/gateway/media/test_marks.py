"""Marks that stand for media in the texts of a conversation."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.dialects.media_marks import (
    Mark,
    Media,
    MediaFound,
    Medium,
    ReadMedium,
    joined,
    omitted,
    source_of,
)
from fairlane.gateway.media.reader import MediaItem
from fairlane.scheduler.protocol.media import MediaForm, media_id

PARTS = st.lists(
    st.text("ab\n0123456789nlrb", max_size=4) | st.sampled_from(["image", "audio"]).map(lambda kind: (kind,))
)


def found_in(parts: list[str | tuple[str]]) -> tuple[str, Media]:
    """The joined text, and its media."""
    found, marked = MediaFound(), list[str | Mark]()
    for part in parts:
        if isinstance(part, str):
            marked.append(part)
        else:
            source = source_of("image" if part[0] == "image" else "audio", "https://a/b", "p")
            marked.append(found.mark(Medium(param="p", type=part[0], source=source, may_omit=True)))
    return joined(marked), found.media


def read(media: Media) -> Media:
    items = [
        MediaItem(medium.kind or "image", "image/png", b"", hashlib.sha256(str(index).encode()).hexdigest())
        for index, medium in enumerate(media.given)
    ]
    return Media(key=media.key, given=media.given, read=tuple([ReadMedium(item, 3) for item in items]))


@given(PARTS)
def test_what_a_text_model_reads_is_joined_by_line_breaks(parts: list[str | tuple[str]]) -> None:
    text, media = found_in(parts)

    words = [part if isinstance(part, str) else omitted(part[0]) for part in parts]
    assert media.omitted_from(text, range(len(media.given))) == "\n".join(words)


@given(PARTS)
def test_media_stand_between_the_texts_without_line_breaks(parts: list[str | tuple[str]]) -> None:
    text, media = found_in(parts)
    media = read(media)

    pieces = list(media.pieces(text)) if media.given else [(text, None)]

    assert [medium for _, medium in pieces if medium is not None] == list(media.read)
    wanted = [list[str]()]
    for part in parts:
        if isinstance(part, str):
            wanted[-1].append(part)
        else:
            wanted.append([])
    assert [piece for piece, _ in pieces] == ["\n".join(texts) for texts in wanted]


@given(PARTS)
def test_media_that_lead_stand_before_the_text_in_their_order(parts: list[str | tuple[str]]) -> None:
    text, media = found_in(parts)
    if not media.given:
        return
    media = read(media)

    led = media.leading(text, {"image": MediaForm(leads=True), "audio": MediaForm(leads=True)})

    pieces = list(media.pieces(led))
    assert [medium for _, medium in pieces[:-1]] == list(media.read)
    assert "".join(piece for piece, _ in pieces).replace("\n", "") == "".join(
        part for part in parts if isinstance(part, str)
    ).replace("\n", "")
    assert [piece for piece, _ in pieces[:-1]] == [""] * len(media.given)


def test_equal_media_side_by_side_are_spans_of_their_own() -> None:
    _, media = found_in([("image",), ("image",), ("audio",)])
    media = read(media)
    first, second = media.read[0], media.read[2]
    assert first is not None
    assert second is not None
    one, other = media_id(first.digest), media_id(second.digest)

    spans = media.spans([5, *[one] * 6, 7, *[other] * 3])

    assert [(span.kind, span.offset, span.length) for span in spans] == [
        ("image", 1, 3),
        ("image", 4, 3),
        ("audio", 8, 3),
    ]
    assert "0" not in repr(media)


def test_a_caller_cannot_write_a_mark() -> None:
    first, _ = found_in([("image",)])
    second, media = found_in([first, ("image",)])

    assert media.omitted_from(second, [0]) == f"{first}\n{omitted('image')}"
