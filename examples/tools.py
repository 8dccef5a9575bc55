"""A tool: the model has to call it, the call is answered, and the model goes on from the result.

Reads OPENAI_API_KEY, and OPENAI_BASE_URL where the gateway is not on this machine.
"""

import json
import os

import openai
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

MODEL = "SmolLM2-135M-Instruct"
BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
WEATHER: ChatCompletionToolParam = {
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


def main() -> None:
    """Print the call, and what the model makes of its result."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Paris?"}]
    with openai.OpenAI(base_url=BASE_URL) as client:
        asked = client.chat.completions.create(
            model=MODEL,
            messages=messages,
            tools=[WEATHER],
            tool_choice={"type": "function", "function": {"name": "weather"}},
            temperature=0,
            max_tokens=64,
        )
        for call in asked.choices[0].message.tool_calls or ():
            if call.type != "function":
                continue
            print(call.function.name, call.function.arguments)
            result = weather(**json.loads(call.function.arguments))
            arguments = call.function.arguments
            messages += [
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": call.id, "type": "function", "function": {"name": "weather", "arguments": arguments}}
                    ],
                },
                {"role": "tool", "tool_call_id": call.id, "content": result},
            ]
        told = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=48)
        print(told.choices[0].message.content)


if __name__ == "__main__":
    main()
