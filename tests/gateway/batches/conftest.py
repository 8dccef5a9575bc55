"""Fixtures of the tests of files and batches."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.gateway.batch_files import folder_settings
from tests.support.gateway.served import Served, serving


@pytest.fixture
async def served(valkey_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    """A gateway with a worker, which keeps files in a folder."""
    async with serving(folder_settings(valkey_url, tmp_path)) as opened:
        yield opened
