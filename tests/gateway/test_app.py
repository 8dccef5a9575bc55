"""The surface around generation: models, limits, health, metrics, what is not there, and what is broken."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from importlib import metadata
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairlane.gateway.fleet import FleetCache
from fairlane.gateway.server import Server
from fairlane.store.errors import StoreUnavailable
from tests.support.gateway.served import (
    ADMIN_KEY,
    ASKED,
    CHAT,
    COMPLETIONS,
    SAID,
    Served,
    error_of,
    gateway,
    serving,
    settings,
    until,
)

pytestmark = pytest.mark.anyio

SENT = "what a client sent"


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url)) as opened:
        await opened.tenant(limits={"tokens_per_day": 100_000})
        yield opened


async def test_the_sdk_lists_and_shows_models(served: Served) -> None:
    async with served.sdk() as client:
        assert [model.id async for model in client.models.list()] == ["tiny"]
        shown = await client.models.retrieve("tiny")
        assert (shown.id, shown.owned_by) == ("tiny", "fairlane")
        assert abs(shown.created - time.time()) < 3_600
        with pytest.raises(openai.NotFoundError) as missing:
            await client.models.retrieve("org/other")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    assert "GET /v1/models lists them" in missing.value.message


async def test_a_405_lists_all_methods_of_its_path(served: Served) -> None:
    expected = {
        CHAT: "POST",
        "/v1/models": "GET, HEAD",
        "/admin/v1/tenants": "GET, HEAD, POST",
        "/admin/v1/tenants/acme": "DELETE, GET, HEAD, PATCH",
        "/admin/v1/tenants/acme/quota": "GET, HEAD, PATCH, PUT",
    }
    async with served.http as client:
        answers = {path: await client.request("OPTIONS", path) for path in expected}

    assert {path: answer.headers["allow"] for path, answer in answers.items()} == expected
    assert {error_of(answer) for answer in answers.values()} == {(405, "method_not_allowed")}


async def test_a_web_socket_is_refused_with_the_status_that_has_clients_send_a_post(served: Served) -> None:
    handshake = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    async with served.http as client:
        answers = [await client.get(path, headers=handshake) for path in ("/v1/messages", CHAT)]
        unasked = await client.get(CHAT)
        served_anyway = await client.get("/healthz", headers=handshake)

    assert {answer.status_code for answer in answers} == {426}
    assert error_of(answers[1]) == (426, "websocket_not_supported")
    assert {answer.headers["upgrade"] for answer in answers} == {"HTTP/1.1"}
    assert error_of(unasked) == (405, "method_not_allowed")
    assert served_anyway.status_code == 200


async def test_health_is_told_without_a_key(served: Served) -> None:
    async with served.http as client:
        for path in ("/health", "/healthz", "/ping", "/readyz"):
            assert (await client.get(path)).status_code == 200
        assert (await client.get("/version")).json() == {"version": metadata.version("fairlane")}


async def test_every_answer_to_a_tenant_says_how_long_it_took(served: Served) -> None:
    answers = [
        await served.post(CHAT, ASKED),
        await served.post(CHAT, {**ASKED, "stream": True}),
        await served.post(CHAT, b"{"),
        await served.get("/v1/models"),
    ]

    assert [answer.status_code for answer in answers] == [200, 200, 400, 200]
    assert all(answer.headers["openai-processing-ms"].isdigit() for answer in answers)


async def test_refusals_have_the_words_that_clients_look_for(served: Served) -> None:
    async with served.http as client:
        nobody = await client.post(CHAT, json=ASKED)
    long = await served.post(CHAT, {**ASKED, "messages": [{"role": "user", "content": "x" * 10_000}]})

    assert nobody.json()["error"]["message"].startswith("Incorrect API key provided")
    assert "this model's maximum context length is" in long.json()["error"]["message"].lower()


async def test_a_whole_number_may_have_a_point(served: Served) -> None:
    plain = await served.post(CHAT, {**ASKED, "max_tokens": 2.0, "n": 1.0, "top_k": 1e1, "temperature": 0.0})
    large = await served.post(COMPLETIONS, {"model": "tiny", "prompt": "Hi " * 9_000, "max_tokens": 2.0})
    half = await served.post(CHAT, {**ASKED, "max_tokens": 2.5})

    assert plain.json()["usage"]["completion_tokens"] == 2
    assert error_of(large) == (400, "context_length_exceeded")
    assert (error_of(half), half.json()["error"]["param"]) == ((400, "invalid_request_error"), "max_tokens")


async def test_a_model_that_a_tenant_or_key_may_not_use_is_hidden_and_refused(served: Served) -> None:
    await served.tenant("other", models=["elsewhere"])
    await served.tenant("scoped", scopes={"models": ["elsewhere"]})

    for tenant in ("other", "scoped"):
        assert (await served.get("/v1/models", tenant=tenant)).json()["data"] == []
        assert error_of(await served.get("/v1/models/tiny", tenant=tenant)) == (403, "model_not_allowed")
        assert error_of(await served.post(CHAT, ASKED, tenant=tenant)) == (403, "model_not_allowed")


async def test_what_an_operator_changes_here_holds_for_the_next_call(served: Served) -> None:
    async def seen(method: str, path: str, **options: Any) -> httpx.Response:
        await served.get("/v1/models")  # from here on the key is remembered
        async with served.http as client:
            headers = {"authorization": f"Bearer {ADMIN_KEY}"}
            changed = await client.request(method, f"/admin/v1/tenants/acme{path}", headers=headers, **options)
        assert changed.is_success, changed.text
        return await served.get("/v1/models")

    assert (await seen("PATCH", "", json={"models": ["elsewhere"]})).json()["data"] == []
    assert error_of(await seen("POST", "/suspend")) == (403, "tenant_suspended")
    assert (await seen("POST", "/resume")).status_code == 200
    assert error_of(await seen("DELETE", "")) == (401, "invalid_api_key")


async def test_sdk_completions_with_several_prompts_and_logprobs(served: Served) -> None:
    async with served.sdk() as client:
        answer = await client.completions.create(model="tiny", prompt=["one", "two"], logprobs=1)
        chunks = [
            chunk
            async for chunk in await client.completions.create(
                model="tiny", prompt="one", stream=True, stream_options={"include_usage": True}
            )
        ]

    assert [choice.text for choice in answer.choices] == [SAID, SAID]
    logprobs = answer.choices[1].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert len(logprobs.tokens) == len(served.worker.script)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == SAID
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(served.worker.script)


async def test_several_prompts_are_reserved_together_or_not_at_all(served: Served) -> None:
    await served.tenant("small", limits={"tokens_per_day": 25, "requests_per_minute": 10})
    body = {"model": "tiny", "prompt": [[5], [6], [7]], "max_tokens": 9, "ignore_eos": True}

    refused = await served.post(COMPLETIONS, body, tenant="small")

    assert error_of(refused) == (400, "request_exceeds_limit")
    limits = await served.limits("small")
    assert {name: (status.used, status.reserved) for name, status in limits.items()} == {
        "tokens_per_day": (0, 0),
        "requests_per_minute": (0, 0),
    }
    assert (await served.post(COMPLETIONS, {**body, "prompt": [[5], [6]]}, tenant="small")).status_code == 200
    assert (await served.limits("small"))["tokens_per_day"].used == 20


async def test_a_choice_that_a_limit_cut_short_names_it(served: Served) -> None:
    await served.tenant("capped", limits={"max_output_tokens": 3})
    await served.tenant("poor", limits={"tokens_per_day": 5})

    capped = (await served.post(COMPLETIONS, {"model": "tiny", "prompt": [5]}, tenant="capped")).json()
    poor = (await served.post(COMPLETIONS, {"model": "tiny", "prompt": [5]}, tenant="poor")).json()
    stated = (await served.post(COMPLETIONS, {"model": "tiny", "prompt": [5], "max_tokens": 3})).json()

    assert capped["choices"][0]["finish_reason"] == "length"
    assert capped["fairlane"] == {"limited_by": "max_output_tokens"}
    assert poor["usage"]["completion_tokens"] == 4
    assert poor["fairlane"] == {"limited_by": "tokens_per_day"}
    assert "fairlane" not in stated


async def test_a_choice_that_a_small_pool_cut_short_names_it(served: Served) -> None:
    served.worker.blocks = 1
    await until(lambda: [model.pool for model in served.resources.fleet.cache.models.values()] == [16])

    cut = (await served.post(COMPLETIONS, {"model": "tiny", "prompt": [5] * 13})).json()
    stated = (await served.post(COMPLETIONS, {"model": "tiny", "prompt": [5] * 13, "max_tokens": 3})).json()

    assert (cut["usage"]["completion_tokens"], cut["fairlane"]) == (3, {"limited_by": "kv_pool"})
    assert "fairlane" not in stated


async def test_a_seed_is_drawn_where_none_is_given(served: Served) -> None:
    for _ in range(2):
        await served.post(CHAT, ASKED)
    await served.post(CHAT, {**ASKED, "seed": 7})

    drawn = [lease.job.sampling.seed for lease in served.worker.seen]
    assert drawn[0] != drawn[1]
    assert all(0 <= seed < 2**63 for seed in drawn)
    assert drawn[2] == 7


async def test_a_jobs_pace_is_what_fits_its_worker(served: Served) -> None:
    await served.post(CHAT, ASKED)
    served.worker.single_stream_ms = 16.0
    fleet_cache = served.resources.fleet.cache
    await until(lambda: [model.single_stream_ms for model in fleet_cache.models.values()] == [16.0])
    await served.post(CHAT, ASKED)
    await served.post(CHAT, ASKED, x_fairlane_lane="throughput")

    assert [lease.job.tpot_ms for lease in served.worker.seen] == [100.0, 48.0, 1_000.0]


async def test_a_quota_change_holds_for_the_next_request(served: Served) -> None:
    assert (await served.post(CHAT, ASKED)).status_code == 200
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    async with served.http as client:
        changed = await client.patch("/admin/v1/tenants/acme/quota", json={"tokens_per_day": 1}, headers=headers)
    assert changed.status_code == 200, changed.text

    refused = await served.post(CHAT, ASKED)

    assert refused.status_code in (400, 429)
    assert refused.json()["error"]["limit"]["name"] == "tokens_per_day"


async def test_metrics_name_lanes_codes_and_tokens(served: Served) -> None:
    await served.post(CHAT, ASKED)
    await served.post(CHAT, b"{")
    await served.landed()
    text = await served.metrics()

    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    codes = {labels["code"] for labels, _ in samples["fairlane_gateway_requests_total"]}
    assert codes == {"ok", "invalid_request_error"}
    tokens = {(labels["tenant"], labels["kind"]): value for labels, value in samples["fairlane_gateway_tokens_total"]}
    assert tokens["acme", "output"] == len(served.worker.script)
    assert samples["fairlane_gateway_time_to_first_token_seconds_count"] == [
        ({"lane": "latency", "model": "tiny", "tenant": "acme"}, 1.0)
    ]
    assert [value for _, value in samples["fairlane_gateway_queue_wait_seconds_count"]] == [1.0]
    assert [value for _, value in samples["fairlane_gateway_time_per_output_token_seconds_count"]] == [1.0]
    ((_, gaps),) = samples["fairlane_gateway_inter_token_gap_seconds_count"]
    assert 0 < gaps < len(served.worker.script)
    refused = {(labels["tenant"], labels["code"]) for labels, _ in samples["fairlane_gateway_refusals_total"]}
    assert refused == {("acme", "invalid_request_error")}
    assert samples["fairlane_gateway_lane_ttft_target_seconds"][0] == ({"lane": "latency"}, 1.0)
    assert samples["fairlane_gateway_kv_usage_ratio"] == [({"model": "tiny"}, 0.0)]


async def explained(served: Served, **asked: Any) -> httpx.Response:
    """The answer to an operator who asks what would become of a request."""
    sizes = {"prompt_tokens": 1, "max_output_tokens": 1, "lane": "latency"}
    async with served.http as client:
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        return await client.post("/admin/v1/tenants/acme/explain", headers=headers, json={**sizes, **asked})


@pytest.mark.parametrize("hangs", [False, True])
async def test_before_the_fleet_was_read_no_model_is_denied(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    answers = asyncio.Event()

    async def unanswered(_: FleetCache) -> None:
        await answers.wait() if hangs else None
        raise StoreUnavailable("slow")

    with monkeypatch.context() as patched:
        patched.setattr(FleetCache, "refresh", unanswered)
        patched.setattr("fairlane.gateway.runtime.resources.FIRST_LOOK_S", 0.05)
        async with gateway(settings(valkey_url)) as served:
            await served.tenant()
            for answer in (
                await served.post(CHAT, ASKED),
                await served.get("/v1/models"),
                await explained(served),
                await explained(served, model="tiny"),
            ):
                assert error_of(answer) == (503, "quota_store_unavailable")
                assert float(answer.headers["retry-after"]) >= 1
            patched.undo()
            answers.set()
            await until(lambda: served.resources.fleet.cache.is_fresh)

            assert error_of(await served.post(CHAT, ASKED)) == (404, "model_not_found")
            assert (await explained(served, model="tiny")).json()["code"] == "model_not_found"


async def test_the_fleet_is_read_before_the_first_request_is_let_in(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    refresh, startup = FleetCache.refresh, Server.startup

    async def slow(fleet_cache: FleetCache) -> None:
        for _ in range(1_000):
            await asyncio.sleep(0)
        await refresh(fleet_cache)
        done.append("read")

    async def started(server: Server, sockets: list[socket.socket] | None = None) -> None:
        await startup(server, sockets)
        done.append("started")

    monkeypatch.setattr(FleetCache, "refresh", slow)
    monkeypatch.setattr(Server, "startup", started)
    async with gateway(settings(valkey_url)):
        assert done[:2] == ["read", "started"]


async def test_readiness_follows_the_worker(valkey_url: str) -> None:
    async with gateway(settings(valkey_url, lease_s=1.0)) as served:
        await served.tenant()

        async def ready() -> tuple[int, str]:
            async with served.http as client:
                answer = await client.get("/readyz")
            return answer.status_code, "" if answer.is_success else json.loads(answer.content)["error"]["code"]

        assert await ready() == (503, "no_worker")
        assert error_of(await served.post(CHAT, ASKED)) == (404, "model_not_found")
        working = asyncio.create_task(served.worker.run())
        await until(lambda: any(model.is_served for model in served.resources.fleet.cache.models.values()))
        assert await ready() == (200, "")

        working.cancel()
        await until(lambda: not any(model.is_served for model in served.resources.fleet.cache.models.values()))
        assert await ready() == (503, "no_worker")
        gone = await served.post(CHAT, ASKED)
        assert error_of(gone) == (503, "no_worker")
        assert int(gone.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("path", "broken"),
    [
        ("/admin/v1/audit", "fairlane.quotas.audit.Audit.search"),
        ("/readyz", "fairlane.gateway.api.health.Health._missing"),
        ("/openapi.json", "starlette.routing.Route.handle"),
    ],
)
async def test_a_fault_of_our_own_anywhere_is_answered_in_our_form_and_logged_without_its_words(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: str, broken: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError(SENT)

    async with served.http as client:
        with monkeypatch.context() as patch:
            patch.setattr(broken, fail)
            answer = await client.get(
                path, headers={"authorization": f"Bearer {ADMIN_KEY}", "x-request-id": "mine-500"}
            )
        assert error_of(answer) == (500, "internal_error")
        assert answer.headers["x-request-id"] == "mine-500"
        assert (await client.get("/healthz")).status_code == 200
    assert "mine-500" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert SENT not in caplog.text


@pytest.mark.parametrize("path", ["/admin/v1/tenants/", "/v1/chat/completion"])
async def test_a_path_that_is_almost_one_is_none(served: Served, path: str) -> None:
    async with served.http as client:
        answer = await client.post(path, headers={"authorization": f"Bearer {ADMIN_KEY}"}, json={})

    assert error_of(answer) == (404, "not_found")
