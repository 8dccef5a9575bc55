"""What is vLLM's own: its facts, its closed interface, its priorities and ids, what divides tenants in its cache."""

import msgspec
import pytest

from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol import engine_priority
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.worker.errors import EngineError
from fairlane.worker.remote.vllm import VllmApi
from tests.support.worker.hand import lease
from tests.support.worker.remote import facts_of, remote_client
from tests.support.worker.vllm_stand_in import MODEL, VllmStandIn

PROMPT = (5, 6, 7, 8, 9)


def test_it_tells_what_it_serves_and_how_large_its_cache_is() -> None:
    with VllmStandIn(blocks=32, block_size=8) as server:
        found = facts_of(VllmApi(server.url, None))

    assert (found.model, found.blocks, found.block_size) == (MODEL, 32, 8)


def test_without_its_token_interface_it_is_refused_by_the_flag_that_opens_it() -> None:
    with (
        VllmStandIn(is_open=False) as server,
        pytest.raises(EngineError, match="token interface is disabled: start it with --enable-scale-out"),
    ):
        facts_of(VllmApi(server.url, None))


def test_what_orders_and_what_divides_tenants_is_told_to_the_server() -> None:
    with VllmStandIn() as server, remote_client(server) as client:
        jobs = [lease("a", PROMPT, max_tokens=2), lease("b", PROMPT, max_tokens=2, lane=LaneName.THROUGHPUT)]
        other = msgspec.structs.replace(jobs[0].job, job_id="c", tenant="other")
        client.add(*jobs, msgspec.structs.replace(jobs[0], job=other))
        client.run()

        by_job = {body["request_id"].split("-")[1]: body for body in server.asked}
        ranks = [engine_priority.decode(by_job[name]["priority"]) for name in "ab"]
        assert [one.lane_rank for one in ranks if one is not None] == [0, 1]
        assert by_job["a"]["cache_salt"] == by_job["b"]["cache_salt"] != by_job["c"]["cache_salt"]
        assert "tenant" not in by_job["a"]["cache_salt"]


def test_what_is_cancelled_is_aborted_by_its_id_and_by_that_which_it_has_inside() -> None:
    """A proxy between us may not pass on at once that the stream was closed."""
    with VllmStandIn(step_s=0.02) as server, remote_client(server) as client:
        client.add(lease("a", PROMPT, max_tokens=200))
        client.until(lambda: len(client.tokens[SeqId("a", 0)]) >= 2)
        client.engine.cancel("a")
        client.until(lambda: any(one.startswith("generate-tokens-") for one in server.aborted))

        assert all(one.endswith("a-0-1") for one in server.aborted)
