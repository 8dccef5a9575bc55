"""Whatever crosses a process comes back as it was, and shows no content."""

import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import (
    Cancel,
    Cause,
    Control,
    Drain,
    Event,
    Finished,
    Job,
    JobSteps,
    Lease,
    ModelCard,
    Outcome,
    Paused,
    PositionLogprobs,
    Preempted,
    Resumed,
    Sampling,
    TokenDelta,
    WorkerStatus,
    controls_of,
    encode,
    ends_of,
)

SECRET = 424_242
LOGPROBS = (PositionLogprobs(-0.5, ((SECRET, -0.5), (7, -1.5))),)
JOB = Job(
    job_id="f1",
    gateway_id="gw",
    tenant="acme",
    weight=0.1,
    lane=LaneName.THROUGHPUT,
    prompt=(SECRET, 1, 2),
    n=2,
    max_tokens=50,
    granted_until=16,
    sampling=Sampling(temperature=0.7, seed=2**62, stop_token_ids=(2,), logprobs=5),
    ttft_ms=1_000.5,
    tpot_ms=100.0,
    deadline_ms=9_000.0,
    guaranteed=True,
    exact=True,
    follows=True,
    traceparent="00-ab-cd-01",
)
EVENTS: list[Event] = [
    TokenDelta(job_id="f1", epoch=3, choice=1, first_index=7, token_ids=(SECRET,), logprobs=LOGPROBS),
    TokenDelta(job_id="f1", epoch=3, choice=0, first_index=0, token_ids=(), finish_reason="stop"),
    Preempted(job_id="f1", choice=0, mode="swap", blocks=4, predicted_ms=1.25),
    Preempted(
        job_id="f1",
        choice=0,
        mode="swap",
        blocks=4,
        predicted_ms=1.25,
        bytes=4096,
        cause=Cause(resource="blocks", lane="latency", tenant="globex", job_id="f2"),
    ),
    Resumed(job_id="f1", choice=0, stalled_ms=80.0),
    Paused(job_id="f1", choice=0),
    Finished(job_id="f1", epoch=3, outcome=Outcome.FAILED, error="worker lost", preemptions=2),
    Finished(
        job_id="f1",
        epoch=3,
        outcome=Outcome.FINISHED,
        steps=JobSteps(taken_ms=3.5, prefill_steps=1, prefill_tokens=8, decode_steps=2, waits_ms={"blocks": 10.0}),
    ),
]
CONTROLS: list[Control] = [Cancel(job_id="f1"), Drain()]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_comes_back_as_it_was(event: Event) -> None:
    assert msgspec.msgpack.decode(encode(event), type=Event) == event


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: type(control).__name__)
def test_a_command_comes_back_as_it_was(control: Control) -> None:
    assert controls_of([encode(control)]) == [control]


def test_a_job_comes_back_as_it_was() -> None:
    assert msgspec.msgpack.decode(encode(JOB), type=Job) == JOB


@pytest.mark.parametrize(
    "message",
    [
        WorkerStatus(
            worker_id="w1", model="m", queue="m@1", card_sha256="1", started_at_ms=1.5, running={"latency": 2}
        ),
        ModelCard(
            model="m", tokenizer_json="{}", chat_template=None, context_length=8, vocab_size=9, eos_token_ids=(1, 2)
        ),
        Lease(job=JOB, epoch=2, arrived_ms_ago=10.0, generated=((1, 2), ())),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_is_stored_comes_back_as_it_was(message: msgspec.Struct) -> None:
    assert msgspec.msgpack.decode(encode(message), type=type(message)) == message


def test_a_card_without_a_response_template_has_the_name_that_it_had_before_there_were_any() -> None:
    card = ModelCard(
        model="m", tokenizer_json="{}", chat_template=None, context_length=8, vocab_size=9, eos_token_ids=(1, 2)
    )
    fields = msgspec.msgpack.decode(encode(card))

    assert "response_template" not in fields
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=ModelCard) == card


@pytest.mark.parametrize("kind", [Preempted, Finished])
def test_workers_of_two_releases_are_understood(kind: type[msgspec.Struct]) -> None:
    """In a rolling update: an older worker says less of a preemption and of an end, and a newer one more."""
    known = next(event for event in EVENTS if type(event) is kind)
    said = msgspec.msgpack.decode(encode(known))

    assert {"cause", "bytes", "steps"}.isdisjoint(said), "what an older release says"
    later = msgspec.msgpack.encode({**said, "of_a_later_release": {"x": 1}})
    assert msgspec.msgpack.decode(later, type=Event) == known


def test_no_message_shows_its_tokens() -> None:
    lease = Lease(job=JOB, epoch=1, arrived_ms_ago=0.0, generated=((SECRET,), ()))

    shown = repr([JOB, lease, *EVENTS, *LOGPROBS])

    assert str(SECRET) not in shown
    assert "prompt=3 tokens" in shown


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xc1", encode(Drain()), msgspec.msgpack.encode({"type": "nonsense"})])
def test_what_is_no_end_is_refused(data: bytes) -> None:
    assert ends_of([data]) == []


def test_a_message_of_a_later_release_is_understood_without_its_new_fields() -> None:
    later = msgspec.msgpack.encode({"type": "cancel", "job_id": "f1", "reason": "tenant suspended"})

    assert controls_of([later]) == [Cancel(job_id="f1")]


def test_messages_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        JOB.max_tokens = 1_000  # type: ignore[misc]


def test_sizes_of_a_job_and_a_worker() -> None:
    status = WorkerStatus(
        worker_id="w", model="m", queue="q", card_sha256="c", started_at_ms=0.0, block_size=16, blocks_total=10
    )

    assert JOB.max_total_tokens == 53
    assert status.kv_tokens == 160


ENDS = [Finished(job_id=f"f{number}", epoch=1, outcome=Outcome.EXPIRED) for number in range(2)]


def test_a_damaged_end_is_left_out_and_the_others_are_read(caplog: pytest.LogCaptureFixture) -> None:
    other = msgspec.msgpack.encode({"type": "of another release"})

    with caplog.at_level(logging.ERROR):
        found = ends_of([b"\xc1", encode(ENDS[0]), b"", other, encode(ENDS[1])])

    assert found == ENDS
    assert len(caplog.records) == 3
    assert "another" not in caplog.text


def test_a_damaged_command_is_left_out() -> None:
    cancel = Cancel(job_id="f1")

    assert controls_of([b"\xff\xff", encode(cancel), b"\x81\xa4type\xa1\xff"]) == [cancel]


@given(st.lists(st.binary(max_size=60)))
def test_whatever_stands_in_a_stream_what_is_sound_comes_through(garbage: list[bytes]) -> None:
    assert ENDS[0] in ends_of([*garbage, encode(ENDS[0])])
    assert Cancel(job_id="f1") in controls_of([*garbage, encode(Cancel(job_id="f1"))])
