"""An embedder's engine: the vectors are the model's own, however inputs are batched and cut into steps."""

import struct
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
import torch

from fairlane.scheduler.protocol.messages import Finished, Outcome, TokenDelta
from fairlane.worker.config import WorkerSection, WorkerSettings
from fairlane.worker.engine.engine import OpenedEngine
from fairlane.worker.errors import ModelError
from fairlane.worker.own_engine import open_engine
from tests.support.worker.hand import lease
from tests.support.worker.tiny_embedder import LONGEST, WIDTH, WORDS, reference, write_tiny_embedder

MOST_STEPS = 200


def opened(directory: Path, **section: object) -> OpenedEngine:
    settings = WorkerSettings(
        model=str(directory),
        data_dir=str(directory / "data"),
        worker=WorkerSection(device="cpu", **section),  # type: ignore[arg-type]
    )
    return open_engine(settings)


def vectors_of(engine: OpenedEngine, inputs: Mapping[str, tuple[int, ...]]) -> dict[str, list[float]]:
    """Of each job, once all have ended; no token of any is published."""
    for job_id, prompt in inputs.items():
        engine.engine.add(lease(job_id, prompt, max_tokens=1), 0.0)
    found: dict[str, list[float]] = {}
    ended: dict[str, Outcome] = {}
    for step in range(MOST_STEPS):
        report = engine.engine.step(float(step))
        for event in report.events:
            if isinstance(event, TokenDelta):
                assert (event.token_ids, event.finish_reason) == ((), "stop")
                found[event.job_id] = list(struct.unpack(f"<{WIDTH}f", event.embedding))
        ended |= {end.job_id: end.outcome for end in report.outcome.ended}
        if len(ended) == len(inputs):
            break
    assert set(ended.values()) <= {Outcome.FINISHED, Outcome.FAILED}
    return found


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_embedder(tmp_path_factory.mktemp("models") / "tiny-embedder")


@pytest.mark.parametrize("max_step_tokens", [5, 16, 512])
def test_vectors_are_the_models_own_however_they_are_batched(directory: Path, max_step_tokens: int) -> None:
    engine = opened(directory, max_step_tokens=max_step_tokens, max_sequences=8)
    inputs = {
        str(length): (2, *((7 * length + place) % len(WORDS) for place in range(length)), 3)
        for length in range(1, LONGEST - 1)
    }

    found = vectors_of(engine, inputs)

    assert found.keys() == inputs.keys()
    for job_id, tokens in inputs.items():
        assert found[job_id] == pytest.approx(reference(directory, list(tokens)), abs=1e-5)


def test_a_job_of_several_inputs_has_a_vector_of_each(directory: Path) -> None:
    engine = opened(directory, max_step_tokens=4)
    inputs = [(2, 10, 3), (2, 11, 12, 13, 14, 3), (2, 15, 3)]
    one = lease("a", tuple(token for tokens in inputs for token in tokens), max_tokens=1)
    job = msgspec.structs.replace(one.job, inputs=tuple(map(len, inputs)))
    engine.engine.add(msgspec.structs.replace(one, job=job), 0.0)

    told: list[TokenDelta] = []
    for step in range(MOST_STEPS):
        told += [event for event in engine.engine.step(float(step)).events if isinstance(event, TokenDelta)]

    [delta] = told
    found = struct.iter_unpack(f"<{WIDTH}f", delta.embedding)
    for vector, tokens in zip(found, inputs, strict=True):
        assert list(vector) == pytest.approx(reference(directory, list(tokens)), abs=1e-5)


@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode": "mean"}, "mean"),
    ],
)
def test_tokens_are_pooled_as_the_model_says(tmp_path: Path, pooling: dict[str, object], mode: str) -> None:
    directory = write_tiny_embedder(tmp_path / "model", pooling=pooling)
    inputs = {"a": (2, 10, 11, 12, 3), "b": (2, 20, 3)}

    found = vectors_of(opened(directory), inputs)

    for job_id, tokens in inputs.items():
        assert found[job_id] == pytest.approx(reference(directory, list(tokens), mode), abs=1e-5)


def test_the_card_says_what_it_is(directory: Path) -> None:
    card = opened(directory).card

    assert (card.model, card.embedding_size, card.context_length) == ("tiny-embedder", WIDTH, LONGEST)
    assert (card.yields, card.chat_template, card.takes_grammars) == ("embeddings", None, False)


@pytest.mark.parametrize(
    ("pooling", "parts", "named"),
    [
        ({"pooling_mode_max_tokens": True}, "", "pooling_mode_max_tokens"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "", "cls and mean"),
        ({}, "", "that it states"),
        (None, "Dense", "Dense"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    tmp_path: Path, pooling: dict[str, object] | None, parts: str, named: str
) -> None:
    with pytest.raises(ModelError, match=named):
        opened(write_tiny_embedder(tmp_path / "model", pooling=pooling, parts=parts))


def test_an_input_that_cannot_be_computed_fails_alone(directory: Path) -> None:
    engine = opened(directory)
    for job_id, prompt in {"bad": (2, len(WORDS), 3), "good": (2, 10, 3)}.items():
        engine.engine.add(lease(job_id, prompt, max_tokens=1), 0.0)

    report = engine.engine.step(0.0)

    assert {end.job_id: end.outcome for end in report.outcome.ended} == {
        "bad": Outcome.FAILED,
        "good": Outcome.FINISHED,
    }
    told = [event for event in report.events if isinstance(event, TokenDelta)]
    assert [event.job_id for event in told] == ["good"]
    assert not [event for event in report.events if isinstance(event, Finished)]


def test_a_vector_that_is_no_number_is_told_to_nobody(directory: Path) -> None:
    engine = opened(directory)
    model: torch.nn.Module = engine.engine.runner._model  # type: ignore[attr-defined]
    with torch.no_grad():
        model.get_parameter("embeddings.word_embeddings.weight")[10].fill_(float("nan"))
    for job_id, prompt in {"bad": (2, 10, 3), "good": (2, 11, 3)}.items():
        engine.engine.add(lease(job_id, prompt, max_tokens=1), 0.0)

    report = engine.engine.step(0.0)

    assert {end.job_id: end.outcome for end in report.outcome.ended} == {
        "bad": Outcome.FAILED,
        "good": Outcome.FINISHED,
    }
