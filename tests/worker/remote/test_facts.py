"""What a worker asks of a server before it takes work."""

import pytest

from fairlane.worker.engine.engine import EngineError
from fairlane.worker.remote.api import Facts
from fairlane.worker.remote.vllm import VllmApi
from tests.support.worker.vllm_stand_in import MODEL, VllmStandIn

pytestmark = pytest.mark.anyio


async def facts(server: VllmStandIn) -> Facts:
    api = VllmApi(server.url, None)
    try:
        return await api.facts()
    finally:
        await api.close()


async def test_a_vllm_tells_what_it_serves_and_how_large_its_cache_is() -> None:
    with VllmStandIn(blocks=32, block_size=8) as server:
        found = await facts(server)

    assert (found.model, found.blocks, found.block_size) == (MODEL, 32, 8)


async def test_a_vllm_without_its_token_interface_is_refused_by_the_flag_that_it_lacks() -> None:
    with VllmStandIn(is_open=False) as server, pytest.raises(EngineError, match="it with --enable-scale-out"):
        await facts(server)
