"""LiteLLM's SDK: an answer, a stream with its usage, a tool that the model has to call, and what is told at a limit.

Reads OPENAI_API_KEY, and OPENAI_BASE_URL where the gateway is not on this machine.
"""

import json
import os
import sys

import litellm

MODEL = "openai/SmolLM2-135M-Instruct"  # `openai/` is the protocol
BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


def weather(city: str, unit: str) -> str:
    """What the tool answers."""
    return f"It is 18 degrees {unit} in {city}."


def chat() -> None:
    """Print an answer."""
    answer = litellm.completion(
        model=MODEL,
        api_base=BASE_URL,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=32,
    )
    print(answer.choices[0].message.content)


def stream() -> None:
    """Print another as it comes, and what it is charged."""
    chunks = litellm.completion(
        model=MODEL,
        api_base=BASE_URL,
        messages=[{"role": "user", "content": "Say in one sentence what a river is."}],
        temperature=0,
        max_tokens=48,
        service_tier="priority",  # the latency lane; `flex` is the throughput lane
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in chunks:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
        if usage := getattr(chunk, "usage", None):
            print(f"\n{usage.prompt_tokens} prompt tokens, {usage.completion_tokens} output tokens")


def tool() -> None:
    """Print the call of a tool, and what the model makes of its result."""
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    ask = {"model": MODEL, "api_base": BASE_URL, "temperature": 0, "max_tokens": 64, "tools": [WEATHER]}
    asked = litellm.completion(messages=messages, tool_choice="required", **ask).choices[0].message
    messages.append(asked)
    for call in asked.tool_calls:
        print(call.function.name, call.function.arguments)
        result = weather(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    print(litellm.completion(messages=messages, tool_choice="none", **ask).choices[0].message.content)


def main() -> None:
    """All three, as far as the tenant's limits let them."""
    litellm.suppress_debug_info = True  # else each error prints where to report it
    try:
        chat()
        stream()
        tool()
    except litellm.RateLimitError as refused:  # LiteLLM keeps the answer's headers, but not in `response`
        after = refused.litellm_response_headers["retry-after"]
        sys.exit(f"{refused.body['code']}: it would fit in {after} s")


if __name__ == "__main__":
    main()
