"""Deadlines: one that can be kept, and one that cannot.

A stated deadline is hard. The server either guarantees it, or admits the request without a promise (best effort), or
refuses it at once with 429 `deadline_unattainable`. What was admitted and comes too late ends with 504
`deadline_exceeded`.
"""

import os

import openai

MODEL = "SmolLM2-135M-Instruct"
BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")


def ask(client: openai.OpenAI, headers: dict[str, str]) -> None:
    """Ask with these deadlines, and print what was promised or why it was refused."""
    stated = ", ".join(f"{name}: {value}" for name, value in headers.items())
    try:
        answer = client.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=32,
            extra_headers=headers,
        )
    except openai.APIStatusError as error:
        later = error.response.headers.get("retry-after", "no later start helps")
        print(f"{stated} -> {error.status_code} {error.code}, retry-after: {later}")
    else:
        print(f"{stated} -> {answer.headers['x-fairlane-class']}: {answer.parse().choices[0].message.content}")


def main() -> None:
    """A minute to the last token and ten seconds to the first; then a single millisecond to the last."""
    with openai.OpenAI(base_url=BASE_URL, max_retries=0) as client:
        ask(client, {"x-fairlane-deadline-ms": "60000", "x-fairlane-ttft-ms": "10000"})
        ask(client, {"x-fairlane-deadline-ms": "1"})


if __name__ == "__main__":
    main()
