"""A chat through the official OpenAI SDK: one whole answer, then one as a stream.

Reads OPENAI_API_KEY, and OPENAI_BASE_URL where the gateway is not on this machine.
"""

import os

import openai

MODEL = "SmolLM2-135M-Instruct"
BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")


def main() -> None:
    """Print both answers and what they are charged."""
    with openai.OpenAI(base_url=BASE_URL) as client:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=32,
        )
        print(answer.choices[0].message.content)

        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Say in one sentence what a river is."}],
            temperature=0,
            max_tokens=48,
            service_tier="priority",  # the latency lane; `flex` is the throughput lane
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            if chunk.choices:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
            if chunk.usage is not None:
                print(f"\n{chunk.usage.prompt_tokens} prompt tokens, {chunk.usage.completion_tokens} output tokens")


if __name__ == "__main__":
    main()
