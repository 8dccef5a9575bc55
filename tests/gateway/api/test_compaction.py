"""`POST /v1/responses/compact`: a conversation made short by the model, for its tenant alone."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.gateway.response_events import RESPONSES, prompt
from tests.support.gateway.served import Served, error_of, serving, settings

pytestmark = pytest.mark.anyio

COMPACT = f"{RESPONSES}/compact"
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "We launch on Tuesday."},
    {"role": "assistant", "content": "Understood: support hears of it first."},
]


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url)) as opened:
        await opened.tenant()
        yield opened


async def compacted(served: Served, **fields: Any) -> dict[str, Any]:
    """The answer to a compaction."""
    answer = await served.post(COMPACT, {"model": "tiny", "input": TALK, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_the_summary_takes_the_place_of_what_the_model_said(served: Served) -> None:
    served.worker.say("Launch: Tuesday.")
    async with served.sdk() as sdk:
        short = await sdk.responses.compact(model="tiny", input=TALK)  # type: ignore[arg-type] # as plain dicts
        asked = prompt(served)
        served.worker.say("Yes.")
        output: list[Any] = [item.model_dump(exclude_none=True, warnings=False) for item in short.output]
        await sdk.responses.create(model="tiny", input=[*output, {"role": "user", "content": "When?"}])

    assert [item.type for item in short.output] == ["message", "compaction"]
    assert "Understood: support hears of it first." in asked
    assert "Summarize the conversation" in asked
    assert "Tuesday" not in str(output[-1])
    shown = prompt(served)
    assert "summary of our conversation so far:\n\nLaunch: Tuesday." in shown
    assert "We launch on Tuesday." in shown
    assert "Understood" not in shown


async def test_it_is_charged_as_what_it_is(served: Served) -> None:
    usage = (await compacted(served))["usage"]

    await served.landed()
    assert await served.ledger() == [("finished", usage["input_tokens"], usage["output_tokens"])]
    assert usage["output_tokens"] == len(served.worker.script)


async def test_it_goes_on_from_a_kept_response_and_from_a_summary(served: Served) -> None:
    first = (await served.post(RESPONSES, {"model": "tiny", "input": "My name is Ann."})).json()
    served.worker.say("Her name is Ann.")
    short = await compacted(served, input=None, previous_response_id=first["id"])
    served.worker.say("Ann again.")
    again = await compacted(served, input=short["output"])

    assert "Her name is Ann." in prompt(served)
    kept = (await served.post(RESPONSES, {"model": "tiny", "input": again["output"]})).json()
    after = await served.post(RESPONSES, {"model": "tiny", "input": "And?", "previous_response_id": kept["id"]})
    assert after.status_code == 200
    assert "Ann again." in prompt(served), "what is kept holds it sealed, and it is opened again"


async def test_a_forged_or_foreign_one_is_refused(served: Served) -> None:
    await served.tenant("other")
    item = (await compacted(served))["output"][-1]
    content = item["encrypted_content"]
    middle = len(content) // 2
    changed = content[:middle] + ("A" if content[middle] != "A" else "B") + content[middle + 1 :]

    for tenant, carried in (("other", content), ("acme", changed), ("acme", "AAAA"), ("acme", "?"), ("acme", "é" * 9)):
        answer = await served.post(
            RESPONSES, {"model": "tiny", "input": [{**item, "encrypted_content": carried}]}, tenant=tenant
        )
        assert error_of(answer) == (400, "invalid_request_error")
        assert answer.json()["error"]["param"] == "input"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "x"}, "model"),
        ({"model": "tiny"}, "input"),
        ({"model": "tiny", "input": []}, "input"),
        ({"model": "tiny", "input": "x", "stream": True}, "stream"),
    ],
)
async def test_what_is_wrong_is_named(served: Served, body: dict[str, Any], param: str) -> None:
    answer = await served.post(COMPACT, body)

    assert error_of(answer) == (400, "invalid_request_error")
    assert answer.json()["error"]["param"] == param


async def test_a_deleted_tenants_summaries_are_gone_with_it(served: Served) -> None:
    item = (await compacted(served))["output"][-1]
    seal = await served.resources.accounts.seals.of("acme", "acme")
    assert await served.store.keys("*seal:acme")

    await served.resources.accounts.tenants.delete("acme")
    await served.resources.control.erasure.round()

    assert not await served.store.keys("*seal:acme")
    fresh = await served.resources.accounts.seals.of("acme", "acme")
    closed = seal.close(b"said")
    assert seal.open(closed) == b"said"
    assert fresh.open(closed) is None
    assert item["encrypted_content"]


async def test_a_model_that_does_not_end_is_cut_at_half_of_what_it_sums_up(served: Served) -> None:
    served.worker.say("and so on " * 500)

    short = await compacted(served)

    assert short["usage"]["output_tokens"] == short["usage"]["input_tokens"] // 2
    assert short["output"][-1]["type"] == "compaction"
