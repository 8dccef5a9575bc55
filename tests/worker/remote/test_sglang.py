"""What is SGLang's own: its priorities, its ids, its errors in mid-stream, its older paths."""

import pytest

from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Outcome, Sampling
from fairlane.worker.errors import EngineError
from fairlane.worker.remote.sglang import SglangApi
from tests.support.worker.hand import lease
from tests.support.worker.remote import facts_of, remote_client
from tests.support.worker.sglang_stand_in import SglangStandIn
from tests.support.worker.vllm_stand_in import MODEL, continuation

PROMPT = (5, 6, 7, 8, 9)


@pytest.mark.parametrize("has_old_paths", [False, True])
def test_its_facts(has_old_paths: bool) -> None:
    with SglangStandIn(has_old_paths=has_old_paths, blocks=64, block_size=4) as server:
        found = facts_of(SglangApi(server.url, None))

    assert (found.version, found.model, found.context_length, found.sequences) == ("0.5.23", MODEL, 256, 8)
    assert found.block_size * found.blocks == 64 * 4
    assert (found.is_exact, found.lacks) == (True, ("allowed_token_ids", "bad_words"))


def test_a_version_that_is_not_known_is_refused() -> None:
    with (
        SglangStandIn(version="0.6.0") as server,
        pytest.raises(EngineError, match=r"^engine_url: SGLang 0\.6\.0 is not supported: run SGLang 0\.5, or"),
    ):
        facts_of(SglangApi(server.url, None))


@pytest.mark.parametrize("orders", ["high", "low"])
def test_the_lane_above_comes_first_whichever_way_it_orders(orders: str) -> None:
    with SglangStandIn(orders=orders) as server, remote_client(server, api=SglangApi(server.url, None)) as client:
        client.add(
            lease("a", PROMPT, max_tokens=2),
            lease("b", PROMPT, max_tokens=2, lane=LaneName.THROUGHPUT),
        )
        client.run()

        above, below = (next(one for one in server.asked if f"-{name}-" in one["rid"])["priority"] for name in "ab")
        assert (above > below) is (orders == "high")
        assert max(abs(above), abs(below)) < 2**53


def test_one_that_orders_by_no_priority_is_told_none(caplog: pytest.LogCaptureFixture) -> None:
    """It may abort requests that name one."""
    with SglangStandIn(orders=None) as server, remote_client(server, api=SglangApi(server.url, None)) as client:
        facts_of(SglangApi(server.url, None))
        client.add(lease("a", PROMPT, max_tokens=2))
        client.run()

        assert "--enable-priority-scheduling" in caplog.text
        assert ["priority" in body for body in server.asked] == [False]


def test_no_id_of_a_request_is_the_beginning_of_another() -> None:
    """SGLang aborts whatever begins with the id that it is given."""
    with SglangStandIn() as server, remote_client(server, api=SglangApi(server.url, None)) as client:
        client.add(lease("a", PROMPT, n=12, max_tokens=2))
        client.run()

        ids = [body["rid"] for body in server.asked]
        assert len(ids) == 12
        assert not [(one, other) for one in ids for other in ids if one is not other and other.startswith(one)]


def test_what_it_refuses_in_mid_stream_is_not_asked_twice() -> None:
    with (
        SglangStandIn(fails_in_stream=400) as server,
        remote_client(server, api=SglangApi(server.url, None)) as client,
    ):
        client.add(lease("a", PROMPT, max_tokens=4))
        client.run()

        assert client.ends["a"].error == "the engine refused it with status 400"
        assert len(server.asked) == 1


def test_a_restart_with_other_arguments_is_noticed() -> None:
    with SglangStandIn(lies="silent") as server, remote_client(server, api=SglangApi(server.url, None)) as client:
        client.add(lease("a", PROMPT, max_tokens=30))
        client.until(lambda: len(client.tokens[SeqId("a", 0)]) == 2)
        server.stop()
        server.lies = None
        server.is_incremental, server.orders = True, "low"
        server.start()
        client.run()

        assert client.ends["a"].outcome is Outcome.FINISHED
        assert client.tokens[SeqId("a", 0)] == continuation(PROMPT, 30)
        assert [body["priority"] < 0 for body in server.asked] == [True, False]


def test_tenants_share_no_prefix_and_draws_are_told() -> None:
    with SglangStandIn() as server, remote_client(server, api=SglangApi(server.url, None)) as client:
        client.add(lease("a", PROMPT, max_tokens=4, sampling=Sampling(top_k=7, top_p=0.5, seed=3, min_tokens=1)))
        client.run()

        [body] = server.asked
        sampling = body["sampling_params"]
        assert len(body["extra_key"]) == 64
        assert (sampling["top_k"], sampling["top_p"], sampling["sampling_seed"]) == (7, 0.5, 3)
        assert (sampling["min_new_tokens"], sampling["max_new_tokens"]) == (1, 4)
