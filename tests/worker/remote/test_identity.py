"""A server that is started again may be another: that is noticed before it is asked for a token. So is a stall."""

import logging
import threading

import pytest

from fairlane.scheduler.planner.steps import SeqId
from fairlane.worker.remote import monitor
from fairlane.worker.remote import runner as remote_runner
from tests.support.worker.hand import lease
from tests.support.worker.remote import LIMIT_S, facts, remote_client
from tests.support.worker.vllm_stand_in import VllmStandIn, continuation

PROMPT = (5, 6, 7, 8, 9)
FIRST = SeqId("a", 0)
SWAPS = {"root": "/models/other", "version": "0.32.9", "context_length": 128, "block_size": 8, "blocks": 16}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"WATCH_S": 0.02, "LOOK_S": 0.02, "GONE_S": 0.1}.items():
        monkeypatch.setattr(monitor, name, seconds)
    monkeypatch.setattr(remote_runner, "RETRY_S", 0.01)


class Watch:
    """What the streams say of their server."""

    def __init__(self) -> None:
        self.presence: list[bool] = []
        self.changes: list[str] = []
        self.news = threading.Event()

    def present(self, is_there: bool) -> None:
        self.presence.append(is_there)
        self.news.set()

    def changed(self, change: str) -> None:
        self.changes.append(change)
        self.news.set()

    def heard(self) -> None:
        assert self.news.wait(LIMIT_S), "nothing was said"
        self.news.clear()


def again(server: VllmStandIn, **changes: object) -> None:
    """It is started again, as another."""
    server.stop()
    for name, value in changes.items():
        setattr(server, name, value)
    server.start()


@pytest.mark.parametrize("what", SWAPS)
def test_another_server_is_noticed_while_nothing_is_asked_of_it(what: str) -> None:
    with VllmStandIn() as server, remote_client(server, facts=facts(server)) as client:
        watch = Watch()
        client.streams.watch(watch.present, watch.changed)
        before = getattr(server, what)
        again(server, **{what: SWAPS[what]})
        while not watch.changes:
            watch.heard()

        assert watch.changes[0].endswith(f"was {before}, and is {SWAPS[what]}")
        assert not client.streams.is_up


def test_a_server_that_takes_grammars_no_longer_is_another() -> None:
    with VllmStandIn(grammars="anew") as server, remote_client(server, facts=facts(server)) as client:
        watch = Watch()
        client.streams.watch(watch.present, watch.changed)
        again(server, grammars="none")
        while not watch.changes:
            watch.heard()

        assert watch.changes == ["its takes grammars was True, and is False"]


def test_a_stream_that_a_swap_broke_is_not_gone_on_with_by_the_other_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "WATCH_S", 3_600.0)
    with VllmStandIn(lies="silent") as server, remote_client(server, facts=facts(server)) as client:
        watch = Watch()
        client.streams.watch(watch.present, watch.changed)
        client.add(lease("a", PROMPT, max_tokens=40))
        client.until(lambda: len(client.tokens[FIRST]) == 2)
        again(server, root="/models/other", lies=None)
        client.until(lambda: watch.changes)
        for _ in range(3):
            client.step()

        assert client.tokens[FIRST] == continuation(PROMPT, 2)
        assert len(server.asked) == 1


def test_a_version_that_is_not_known_gets_nothing_until_one_is_back(caplog: pytest.LogCaptureFixture) -> None:
    with VllmStandIn() as server, remote_client(server, facts=facts(server)) as client:
        watch = Watch()
        client.streams.watch(watch.present, watch.changed)
        with caplog.at_level(logging.ERROR):
            again(server, version="0.99.0")
            while watch.presence != [False]:
                watch.heard()
            client.add(lease("a", PROMPT, max_tokens=4))
            for _ in range(3):
                client.step()
            assert server.asked == []
            again(server, version="0.32.0")
            client.run()

        assert watch.presence == [False, True]
        assert watch.changes == []
        assert client.tokens[FIRST] == continuation(PROMPT, 4)
        [logged] = [record.message for record in caplog.records if record.name == monitor.__name__]
        assert "engine_url: vLLM 0.99.0 is not supported: run vLLM 0.32 or 0.33, or a version of Fairlane" in logged


def test_a_restart_as_the_same_changes_nothing() -> None:
    with VllmStandIn(blocks=100) as server, remote_client(server, facts=facts(server)) as client:
        watch = Watch()
        client.streams.watch(watch.present, watch.changed)
        again(server, blocks=95)
        client.add(lease("a", PROMPT, max_tokens=4))
        client.run()

        assert client.tokens[FIRST] == continuation(PROMPT, 4)
        assert watch.changes == []


@pytest.mark.parametrize("said", [0, 2])
def test_a_server_that_stalls_gives_its_jobs_back_within_a_lease(said: int) -> None:
    """Though it says that it is well."""
    stalled = VllmStandIn(lies="silent", lies_from=said + 1)
    with stalled as server, remote_client(server, facts=facts(server), lease_s=0.2) as client:
        watch = Watch()
        client.streams.watch(watch.present, watch.changed)
        client.add(lease("a", PROMPT, max_tokens=40))
        client.until(lambda: watch.presence)

        assert watch.presence[0] is False
        assert client.tokens[FIRST] == continuation(PROMPT, said)
        assert not client.streams.is_up
