"""Fixture: a real vLLM with a model that takes images, for every test of a run that needs one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.vllm import SMALL_BLOCKS, Vllm


@pytest.fixture(scope="session")
def vision_server(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    """Start it once: that takes a minute."""
    from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
    from fairlane.worker.model.files import resolve
    from tests.support.worker.vision.model import write_vision_model

    directory = tmp_path_factory.mktemp("vision")
    model = write_vision_model(directory / "seeing", resolve(DEFAULT_MODEL, models_dir).directory)
    with Vllm(directory, model, arguments=SMALL_BLOCKS) as started:
        yield started
