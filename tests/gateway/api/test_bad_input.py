"""Broken and impossible requests: each named, none of them costing anything, the server as well as before."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlane.cli.embedded_store import EmbeddedStore
from tests.support.gateway.served import ASKED, CHAT, COMPLETIONS, Served, error_of, serving, settings

pytestmark = pytest.mark.anyio
SECTION = {"max_body_bytes": 100_000, "max_tokens_beyond_context": "refuse", "unknown_fields": "refuse"}


@pytest.fixture(scope="module")
async def served(emptied_valkey: EmbeddedStore) -> AsyncIterator[Served]:
    """One server for all: what is refused leaves no trace."""
    async with serving(settings(emptied_valkey.url, section=SECTION)) as opened:
        await opened.tenant(limits={"tokens_per_day": 100_000})
        yield opened


async def test_an_output_limit_beyond_the_context_is_refused_in_words_that_clients_know(served: Served) -> None:
    asked = {**ASKED, "max_tokens": 100_000}

    chat, message = await served.post(CHAT, asked), await served.post("/v1/messages", asked)

    assert re.search(r"maximum context length is \d+ tokens\. However", chat.json()["error"]["message"])
    claude = r"input length and `max_tokens` exceed context limit: \d+ \+ 100000 > \d+"
    assert re.match(claude, message.json()["error"]["message"])


@pytest.mark.parametrize(
    ("change", "status", "code", "param"),
    [
        ({"model": "nope"}, 404, "model_not_found", "model"),
        ({"max_tokens": 100_000}, 400, "context_length_exceeded", "max_tokens"),
        ({"service_tier": "gold"}, 400, "invalid_request_error", "service_tier"),
        ({"n": 0}, 400, "invalid_request_error", "n"),
        ({"tools": [{}]}, 400, "invalid_request_error", "tools.[0].function"),
        ({"nonsense": 1}, 400, "invalid_request_error", "nonsense"),
    ],
)
async def test_a_wrong_request_names_its_field(
    served: Served, change: dict[str, Any], status: int, code: str, param: str
) -> None:
    refused = await served.post(CHAT, {**ASKED, **change})

    assert refused.status_code == status
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert set(error) >= {"message", "type", "param", "code"}
    assert (await served.limits())["tokens_per_day"].reserved == 0


@pytest.mark.parametrize("value", ["0", "-5", "nan", "soon", "1e400", "10_000"])
async def test_a_deadline_that_is_no_time_is_refused(served: Served, value: str) -> None:
    answer = await served.post(CHAT, ASKED, x_fairlane_deadline_ms=value)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-fairlane-deadline-ms"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("POST", "/v1/nothing", 404, "not_found"),
        ("GET", "/nothing", 404, "not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("POST", CHAT + "/x", 404, "not_found"),
        ("GET", "/admin/v1/nothing", 404, "not_found"),
    ],
)
async def test_what_is_not_there_says_so_in_json(
    served: Served, method: str, path: str, status: int, code: str
) -> None:
    async with served.http as client:
        answer = await client.request(method, path, headers={"authorization": f"Bearer {served.keys['acme']}"})

    assert error_of(answer) == (status, code)
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b"[]", 400, None),
        (b'{"model": "tiny", "messages": "\xff"}', 400, None),
        (b'{"model": "tiny", "messages": []}', 400, "messages"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}', 400, None),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "temperature": 1e309}', 400, None),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": -1}', 400, "max_tokens"),
        (b'{"model": 7, "messages": [{"role": "user", "content": "x"}]}', 400, "model"),
        (b"x" * 100_001, 413, None),
    ],
)
async def test_a_broken_body_is_refused_and_the_server_is_as_well_as_before(
    served: Served, body: bytes, status: int, param: str | None
) -> None:
    answer = await served.post(CHAT, body)

    assert answer.status_code == status, answer.text
    if param is not None:
        assert answer.json()["error"]["param"] == param
    before = len(served.worker.seen)
    assert (await served.post(CHAT, ASKED)).status_code == 200
    assert len(served.worker.seen) == before + 1


@pytest.mark.parametrize(
    ("change", "told"),
    [({"metadata": {}}, 200), ({"store": False}, 200), ({"store": True}, 200), ({"suffix": "x"}, 400)],
)
async def test_a_field_that_is_not_supported_yet_passes_at_its_neutral_value(
    served: Served, change: dict[str, Any], told: int
) -> None:
    assert (await served.post(CHAT, {**ASKED, **change})).status_code == told


async def test_a_long_prompt_is_read_like_a_short_one(served: Served) -> None:
    long = {**ASKED, "messages": [{"role": "user", "content": "x " * 20_000}]}

    answer = await served.post(CHAT, long)

    assert error_of(answer) == (400, "context_length_exceeded")


@pytest.mark.parametrize("stated", [{}, {"max_tokens": 5}])
async def test_a_prompt_far_over_the_context_is_refused_uncounted(served: Served, stated: dict[str, int]) -> None:
    answer = await served.post(COMPLETIONS, {"model": "tiny", "prompt": "x" * 90_000, **stated})

    assert error_of(answer) == (400, "context_length_exceeded")
    assert answer.json()["error"]["param"] == "prompt"
    assert "at least" in answer.json()["error"]["message"]


async def test_the_callers_request_id_is_given_back(served: Served) -> None:
    assert (await served.post(CHAT, ASKED, x_request_id="mine-1")).headers["x-request-id"] == "mine-1"
    assert (await served.post(CHAT, b"{", x_request_id="mine-2")).headers["x-request-id"] == "mine-2"


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 400), ("identity, br", 400), ("Identity", 200)])
async def test_a_body_that_is_not_compressed_as_it_says_is_refused(served: Served, encoding: str, status: int) -> None:
    answer = await served.post(CHAT, ASKED, content_encoding=encoding)

    assert answer.status_code == status
    if status == 400:
        assert answer.json()["error"]["param"] == "content-encoding"
