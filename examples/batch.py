"""Many prompts through the throughput lane: JSON lines in, JSON lines out, in the same order.

    python examples/batch.py prompts.jsonl answers.jsonl --in-flight 16

Each line of the input is a body of `/v1/chat/completions` without `model`. A refusal that says when the request would
fit (429 or 503 with `retry-after-ms`) is waited for; one that says `x-should-retry: false` is written down as an error.
"""

import argparse
import asyncio
import json
import os
from pathlib import Path
from typing import Any

import openai
from openai.types.chat import ChatCompletion

MODEL = "SmolLM2-135M-Instruct"
BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
LONGEST_WAIT_S = 24 * 3600.0
"""The throughput lane's longest time in the queue, as the server has it by default."""


async def answer(client: openai.AsyncOpenAI, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to one line, or the error that ended it."""
    while True:
        try:
            done: ChatCompletion = await client.chat.completions.create(model=MODEL, service_tier="flex", **body)
        except openai.APIStatusError as error:
            after_ms = error.response.headers.get("retry-after-ms")
            if after_ms is None or error.response.headers.get("x-should-retry") == "false":
                return {"error": error.body}
            await asyncio.sleep(float(after_ms) / 1000)
        else:
            return done.to_dict()


async def answers(bodies: list[dict[str, Any]], in_flight: int) -> list[dict[str, Any]]:
    """The answer to each body, with up to `in_flight` requests at the server at a time."""
    places = asyncio.Semaphore(in_flight)
    # The server says when to retry, so the SDK's own shorter retries are off.
    async with openai.AsyncOpenAI(base_url=BASE_URL, max_retries=0, timeout=LONGEST_WAIT_S) as client:

        async def one(body: dict[str, Any]) -> dict[str, Any]:
            async with places:
                return await answer(client, body)

        return await asyncio.gather(*map(one, bodies))


def main() -> None:
    """Read the prompts, have them answered, write the answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--in-flight", type=int, default=16)
    options = parser.parse_args()
    bodies = [json.loads(line) for line in options.source.read_text().splitlines() if line]
    done = asyncio.run(answers(bodies, options.in_flight))
    options.target.write_text("".join(f"{json.dumps(each)}\n" for each in done))
    failed = sum("error" in each for each in done)
    print(f"{len(done) - failed} answered, {failed} failed")


if __name__ == "__main__":
    main()
