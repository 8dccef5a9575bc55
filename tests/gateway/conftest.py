"""Fixtures of the gateway's tests."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.gateway.admin_app import AdminBench, admin_bench
from tests.support.gateway.served import Served, serving, settings

ROUNDS = (
    "batches.open_batch.SEGMENT_S",
    "batches.runner.LOOK_EVERY_S",
    "fleet.REFRESH_EVERY_S",
    "middleware.idempotent_run._LONGEST_PAUSE_S",
    "pipeline.delivery.TEND_EVERY_S",
    "pipeline.orphans.TEND_EVERY_S",
    "pipeline.prices.LOOK_EVERY_S",
    "pipeline.recovery.REAP_EVERY_S",
    "pipeline.recovery.WATCH_EVERY_S",
)
"""Periods of a gateway's loops in the background, 0.5 s or 1 s in production."""
ROUND_S = 0.1


@pytest.fixture(scope="module", autouse=True)
def quick_rounds() -> Iterator[None]:
    """Shorten the rounds of gateways in this process: many tests wait for the next one."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ROUNDS:
            patch.setattr(f"fairlane.gateway.{name}", ROUND_S)
        yield


@pytest.fixture(scope="module")
async def file_gateway(file_url: str) -> AsyncIterator[Served]:
    """One gateway with a worker for all tests of a file."""
    async with serving(settings(file_url)) as opened:
        yield opened


@pytest.fixture
async def fresh_gateway(file_gateway: Served) -> Served:
    """The gateway of the file, whose tenants are this test's own."""
    await file_gateway.renew()
    return file_gateway


@pytest.fixture
async def bench(valkey_url: str) -> AsyncIterator[AdminBench]:
    """The admin API over an empty store."""
    async with admin_bench(valkey_url) as opened:
        yield opened
