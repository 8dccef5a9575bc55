"""Measuring images: what a tenant may ask of the workers, and what it costs."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future

import pytest

from fairlane.scheduler.protocol.media import MediaKind
from fairlane.scheduler.protocol.settings import Hosts, Networks
from tests.gateway.media.conftest import MediaHost, answer
from tests.gateway.media.files import png
from tests.gateway.media.test_conversations import CHAT, Engine, chat, image, vision
from tests.support.gateway.served import Served, error_of, until

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


class Slow(Engine):
    """Measures when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[bytes, Future[int]]] = []

    def measure(self, kind: MediaKind, data: bytes) -> Future[int]:
        self.measured.append(data)
        self.waiting.append((data, Future[int]()))
        return self.waiting[-1][1]

    def go_on(self) -> None:
        while self.waiting:
            self.waiting.pop(0)[1].set_result(3)


@pytest.fixture
def engine() -> Slow:
    return Slow()


@pytest.fixture
async def served(valkey_url: str, engine: Slow) -> AsyncIterator[Served]:
    async with vision(valkey_url, engine) as served:
        yield served


def numbered(number: int) -> bytes:
    return png(48) + number.to_bytes(4, "big")


async def test_a_tenant_with_many_images_keeps_no_other_waiting(served: Served, engine: Slow) -> None:
    await served.tenant("other")
    many = [asyncio.create_task(served.post(CHAT, chat(image(numbered(number))))) for number in range(30)]
    await until(lambda: len(engine.waiting) == 4)
    one = asyncio.create_task(served.post(CHAT, chat(image(png(160))), tenant="other"))
    await until(lambda: served.resources.ports.bodies.of_tenant("other") > 0)

    async with asyncio.timeout(20):
        while not all(each.done() for each in (*many, one)):
            engine.go_on()
            await asyncio.sleep(0.005)

    assert one.result().status_code == 200
    assert {each.result().status_code for each in many} == {200}
    assert engine.measured.index(png(160)) <= 12


async def test_the_images_of_a_request_are_measured_at_the_same_time(served: Served, engine: Slow) -> None:
    asking = asyncio.create_task(served.post(CHAT, chat(*[image(numbered(number)) for number in range(3)])))
    await until(lambda: len(engine.waiting) == 3)
    engine.go_on()

    assert (await asking).status_code == 200


async def test_an_engine_that_restarts_with_other_settings_is_asked_again(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlane.gateway.pipeline.media_desk.KNOWN_S", 0.01)
    engine = Engine()
    async with vision(valkey_url, engine) as served:
        for _ in range(2):
            assert (await served.post(CHAT, chat(image(png(48))))).status_code == 200
            await asyncio.sleep(0.02)

    assert engine.measured == [png(48)] * 2


async def test_what_was_fetched_for_a_refused_request_counts_against_its_key(valkey_url: str, host: MediaHost) -> None:
    data = png(48) + bytes(640 * 1024)
    host.answers = {"/a.png": answer(data)}
    hosts, networks = Hosts.of([f"http://127.0.0.1:{host.port}"]), Networks(["127.0.0.0/8"])
    limits = {"media_hosts": hosts, "media_networks": networks, "refused_per_minute": 15}
    async with vision(valkey_url, Engine(), **limits) as served:
        await served.tenant("poor", limits={"tokens_per_minute": 1})
        part = {"type": "image_url", "image_url": f"http://127.0.0.1:{host.port}/a.png"}
        said = [await served.post(CHAT, chat(part), tenant="poor") for _ in range(5)]

    assert [len(host.requests), said[-1].status_code] == [2, 429]
    assert said[-1].json()["error"]["limit"]["name"] == "refused_requests_per_minute"


async def test_media_that_can_never_fit_are_no_temporary_refusal(valkey_url: str, host: MediaHost) -> None:
    data = png(48) + bytes(40 * 1024)
    host.answers = {f"/{number}": answer(data + bytes([number])) for number in range(4)}
    hosts, networks = Hosts.of([f"http://127.0.0.1:{host.port}"]), Networks(["127.0.0.0/8"])
    limits = {"media_hosts": hosts, "media_networks": networks, "tenant_body_bytes": 128 * 1024}
    async with vision(valkey_url, Engine(), **limits) as served:
        parts = [{"type": "image_url", "image_url": f"http://127.0.0.1:{host.port}/{number}"} for number in range(4)]
        many, few = await served.post(CHAT, chat(*parts)), await served.post(CHAT, chat(*parts[:2]))
        await served.landed()

        assert (error_of(many), few.status_code) == ((413, "request_too_large"), 200)
        await until(lambda: not served.resources.ports.bodies.held_bytes)
