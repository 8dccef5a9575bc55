"""Fixtures of the gateway's tests."""

from collections.abc import AsyncIterator

import pytest

from tests.support.gateway.admin_app import AdminBench, admin_bench


@pytest.fixture
async def bench(valkey_url: str) -> AsyncIterator[AdminBench]:
    """The admin API over an empty store."""
    async with admin_bench(valkey_url) as opened:
        yield opened
