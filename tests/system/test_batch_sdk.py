"""A batch against the real model, by the official SDK: the answers are those of plain requests."""

import json
import time

import pytest

from tests.support.system.harness import MODEL, Server

pytestmark = pytest.mark.system

WITHIN_S = 60.0
QUESTIONS = ("What is the capital of France?", "What is the capital of Italy?", "Name a colour.")


def test_a_batch_answers_as_plain_requests_do(server: Server) -> None:
    key = server.tenant("batches")
    asked = [
        {"model": MODEL, "messages": [{"role": "user", "content": each}], "temperature": 0, "max_tokens": 16}
        for each in QUESTIONS
    ]
    content = "\n".join(
        json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body})
        for number, body in enumerate([*asked, {"model": MODEL}])
    )
    with server.sdk(key) as client:
        sent = client.files.create(file=("in.jsonl", content.encode()), purpose="batch")
        batch = client.batches.create(input_file_id=sent.id, endpoint="/v1/chat/completions", completion_window="24h")
        until = time.monotonic() + WITHIN_S
        while batch.status not in ("completed", "failed") and time.monotonic() < until:
            batch = client.batches.retrieve(batch.id)
        found = [json.loads(each) for each in client.files.content(batch.output_file_id or "").text.splitlines()]
        errors = client.files.content(batch.error_file_id or "").text
        plain = [client.chat.completions.create(**body) for body in asked]  # type: ignore[call-overload]

    assert batch.status == "completed"
    told = {each["custom_id"]: each["response"]["body"]["choices"][0]["message"]["content"] for each in found}
    assert told == {str(number): each.choices[0].message.content for number, each in enumerate(plain)}
    assert json.loads(errors)["response"]["body"]["error"]["param"] == "messages"
    assert batch.usage is not None
    assert batch.usage.output_tokens == sum(each.usage.completion_tokens for each in plain)
