"""Images at a server with vLLM's interface: how they are found to stand in prompts, asked for, checked and measured."""

import asyncio
import hashlib
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
import pytest

from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.media import MediaForm, MediaSpan, media_id
from fairlane.scheduler.protocol.messages import Lease, ModelCard, Outcome, PromptLogprobs, Sampling
from fairlane.worker.remote import runner as remote_runner
from fairlane.worker.remote.api import Api
from fairlane.worker.remote.vllm import VllmApi
from tests.support.worker.hand import lease
from tests.support.worker.remote import RemoteClient, facts_of, remote_client
from tests.support.worker.vision.stand_in import (
    AFTER,
    BEFORE,
    MAGIC,
    PATCH,
    TARGET,
    VisionStandIn,
    tokens_of,
)
from tests.support.worker.vllm_stand_in import MODEL, VllmStandIn, continuation

CARD = ModelCard(
    model=MODEL, tokenizer_json="", chat_template=None, context_length=256, vocab_size=97, eos_token_ids=(2,)
)
IMAGE, OTHER, TEXT = MAGIC + b"a", MAGIC + b"another", b"no image"
FIRST = SeqId("a", 0)
T = TypeVar("T")


def probed(server: VllmStandIn) -> Api:
    api = VllmApi(server.url, None)
    facts_of(api)
    server.asked.clear()
    return api.serving(CARD)


def seeing(*items: bytes, job_id: str = "a", tenant: str = "tenant", **more: Any) -> Lease:
    """A job of these images, a token before each and two after all."""
    prompt, spans = list[int](), list[MediaSpan]()
    for item in items:
        digest, length = hashlib.sha256(item).digest(), tokens_of(item)
        prompt.append(8)
        spans.append(MediaSpan("image", digest, len(prompt), length))
        prompt += [media_id(digest)] * length
    made = lease(job_id, [*prompt, 9, 10], **{"max_tokens": 4, **more})
    return msgspec.structs.replace(made, job=msgspec.structs.replace(made.job, media=tuple(spans), tenant=tenant))


def expanded(*items: bytes) -> list[int]:
    prompt = list[int]()
    for item in items:
        prompt += [8, TARGET, *[PATCH] * (tokens_of(item) - 1)]
    return [*prompt, 9, 10]


def hold(client: RemoteClient, *items: bytes) -> None:
    client.streams.media |= {hashlib.sha256(item).digest(): item for item in items}


def asked(api: Api, question: Coroutine[Any, Any, T]) -> T:
    async def whole() -> T:
        try:
            return await question
        finally:
            await api.close()

    return asyncio.run(whole())


@pytest.mark.parametrize(
    ("form", "leads"), [("between", False), ("leading", True)], ids=["where they stand", "before the text"]
)
def test_the_probe_finds_how_images_stand_in_prompts(form: str, leads: bool) -> None:
    with VisionStandIn(form=form) as server:
        found = facts_of(VllmApi(server.url, None))

    assert found.media == {"image": MediaForm(before=(BEFORE,), after=(AFTER,), leads=leads)}


def test_a_server_is_probed_once_in_a_life() -> None:
    with VisionStandIn() as server:
        api = VllmApi(server.url, None)

        async def twice() -> int:
            await api.facts()
            known = server.rendered
            await api.facts()
            return server.rendered - known

        assert asked(api, twice()) == 0


def test_the_token_that_stands_for_an_image_may_be_one_that_its_tokens_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.worker.vision.stand_in._expansion", lambda image: [PATCH] * tokens_of(image))
    with VisionStandIn(names={"<image>": TARGET}) as server:
        assert facts_of(VllmApi(server.url, None)).media


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (VisionStandIn(expands="never"), "no token that stands for an item was found"),
        (VisionStandIn(expands="longer"), "no token that stands for an item was found"),
        (VisionStandIn(form="numbered"), "shows two items in another way than one"),
    ],
    ids=["no token", "other tokens", "numbered"],
)
def test_images_that_cannot_be_placed_are_not_served_and_the_log_says_why(
    server: VisionStandIn, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with server, caplog.at_level(logging.WARNING, "fairlane"):
        assert facts_of(VllmApi(server.url, None)).media == {}

    assert [why in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize("server", [VllmStandIn(), VisionStandIn(takes=())], ids=["no render", "text alone"])
def test_a_model_of_text_alone_takes_none_and_nothing_is_logged(
    server: VllmStandIn, caplog: pytest.LogCaptureFixture
) -> None:
    with server, caplog.at_level(logging.WARNING, "fairlane"):
        assert facts_of(VllmApi(server.url, None)).media == {}

    assert not caplog.records


def test_a_server_that_takes_images_no_longer_has_changed() -> None:
    with VisionStandIn() as server:
        found = facts_of(VllmApi(server.url, None))

    assert "media" in found.change(found._replace(media={}))


def test_images_are_measured_and_bytes_that_are_none_are_no_tokens() -> None:
    with VisionStandIn() as server:
        api = VllmApi(server.url, None)

        async def measured() -> list[int]:
            return [await api.measure("image", item) for item in (IMAGE, OTHER, TEXT)]

        assert asked(api, measured()) == [tokens_of(IMAGE), tokens_of(OTHER), 0]


def test_a_prompt_with_images_is_computed_as_the_server_expands_it() -> None:
    with VisionStandIn() as server, remote_client(server, api=probed(server)) as client:
        hold(client, IMAGE, OTHER)
        client.add(seeing(IMAGE, OTHER, IMAGE))
        client.run()

        assert client.tokens[FIRST] == continuation(expanded(IMAGE, OTHER, IMAGE), 4)
        assert server.asked[0]["token_ids"] == [8, TARGET, 8, TARGET, 8, TARGET, 9, 10]


def test_every_choice_sees_the_images_and_goes_on_after_what_others_published() -> None:
    known = tuple(continuation(expanded(IMAGE), 2))
    with VisionStandIn() as server, remote_client(server, api=probed(server)) as client:
        hold(client, IMAGE)
        client.add(seeing(IMAGE, n=2, generated=(known, ())))
        client.run()

        assert [client.tokens[SeqId("a", choice)] for choice in range(2)] == [continuation(expanded(IMAGE), 4)] * 2
        assert sorted(len(body["token_ids"]) for body in server.asked) == [4, 6]


def test_tenants_share_no_cached_image() -> None:
    with VisionStandIn() as server, remote_client(server, api=probed(server)) as client:
        hold(client, IMAGE)
        client.add(*[seeing(IMAGE, job_id=name, tenant=tenant) for name, tenant in zip("abc", "xxy", strict=True)])
        client.run()

        keys = {body["request_id"].split("-")[1]: body["content_parts"][0]["uuid"] for body in server.asked}
        assert keys["a"] == keys["b"] != keys["c"]
        assert hashlib.sha256(IMAGE).hexdigest() not in keys.values()


def test_log_probabilities_of_a_prompt_with_images() -> None:
    with VisionStandIn() as server, remote_client(server, api=probed(server)) as client:
        hold(client, IMAGE)
        client.add(seeing(IMAGE, sampling=Sampling(prompt_logprobs=1)))
        client.run()

        (found,) = [event for event in client.events if isinstance(event, PromptLogprobs)]
        assert len(found.logprobs) == len(expanded(IMAGE)) - 1


@pytest.mark.parametrize("expands", ["longer", "moved", "silent"])
def test_a_prompt_that_the_server_expands_in_another_way_than_measured_fails(
    expands: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_runner, "RETRY_S", 0.01)
    with VisionStandIn() as server, remote_client(server, api=probed(server)) as client:
        server.expands = expands
        hold(client, IMAGE)
        client.add(seeing(IMAGE))
        client.run()

        assert (client.ends["a"].outcome, client.tokens[FIRST]) == (Outcome.FAILED, [])


def test_bytes_that_are_no_image_fail_at_once() -> None:
    with VisionStandIn() as server, remote_client(server, api=probed(server)) as client:
        hold(client, TEXT)
        client.add(seeing(TEXT))
        client.run()

        assert client.ends["a"].outcome is Outcome.FAILED
        assert len(server.asked) == 1


def test_a_job_whose_images_were_released_asks_for_nothing() -> None:
    with VisionStandIn() as server, remote_client(server, api=probed(server)) as client:
        client.add(seeing(IMAGE))
        client.step()
        client.step()

        assert server.asked == []
