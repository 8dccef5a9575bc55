"""Fixture: real vLLMs with models that take images, by family, for every test of a run that needs one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.vllm import SMALL_BLOCKS, Vllm

if TYPE_CHECKING:
    from tests.support.worker.vision.model import Family


@pytest.fixture(scope="session")
def vision_server(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Family], Vllm]]:
    """Start each once: that takes a minute."""
    from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
    from fairlane.worker.model.files import resolve
    from tests.support.worker.vision.model import write_vision_model

    language = resolve(DEFAULT_MODEL, models_dir).directory
    with ExitStack() as servers:

        @cache
        def started(family: Family) -> Vllm:
            directory = tmp_path_factory.mktemp(family)
            model = write_vision_model(directory / family, language, family)
            return servers.enter_context(Vllm(directory, model, arguments=SMALL_BLOCKS))

        yield started
