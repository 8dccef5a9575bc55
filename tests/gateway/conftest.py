"""Fixtures of the gateway's tests."""

from collections.abc import AsyncIterator

import pytest

from tests.support.gateway.admin_app import AdminBench, admin_bench

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


@pytest.fixture(autouse=True)
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the rounds of each test's own gateways: many tests wait for the next one."""
    for name in ROUNDS:
        monkeypatch.setattr(f"fairlane.gateway.{name}", ROUND_S)


@pytest.fixture
async def bench(valkey_url: str) -> AsyncIterator[AdminBench]:
    """The admin API over an empty store."""
    async with admin_bench(valkey_url) as opened:
        yield opened
