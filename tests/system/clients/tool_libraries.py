"""LlamaIndex, Instructor and LiteLLM in two turns that each call a tool, streamed and not, for the clients' own
environment. The argument names one of them."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

MODEL = os.environ["OPENAI_MODEL"]
BASE_URL = os.environ["OPENAI_BASE_URL"]
ASKED = ("What is the weather in Paris?", "And tomorrow?")


def get_weather(location: str) -> str:
    """Return the weather of a place."""
    return f"sunny in {location}"


def say(name: str, text: object) -> None:
    """Print what a client made of an answer."""
    sys.stdout.write(f"{name}: {text}\n")


def llamaindex() -> None:
    """Agents, whose memory has the first turn."""
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.workflow import Context
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(model=MODEL, api_base=BASE_URL, is_chat_model=True, is_function_calling_model=True, max_retries=0)

    async def run() -> None:
        for streamed in (False, True):
            agent = FunctionAgent(tools=[get_weather], llm=llm, streaming=streamed)
            memory = Context(agent)
            for asked in ASKED:
                say("agent", await agent.run(asked, ctx=memory))

    asyncio.run(run())


def instructor() -> None:
    """Objects of a class, from the calls of a tool and from JSON, whole and as they grow."""
    import instructor as library
    import openai
    from pydantic import BaseModel

    class Weather(BaseModel):
        """The weather of a place."""

        location: str
        sky: str

    for mode in (library.Mode.TOOLS, library.Mode.TOOLS_STRICT, library.Mode.JSON_SCHEMA, library.Mode.RESPONSES_TOOLS):
        client = library.from_openai(openai.OpenAI(max_retries=0), mode=mode)
        turns: list[dict[str, Any]] = []
        for asked in ASKED:
            turns.append({"role": "user", "content": asked})
            found, answer = client.create_with_completion(
                model=MODEL, messages=turns, response_model=Weather, max_retries=0
            )
            say(mode.name, found)
            if mode is library.Mode.RESPONSES_TOOLS:  # whose items it does not take back
                turns.append({"role": "assistant", "content": found.model_dump_json()})
                continue
            message = answer.choices[0].message
            results = [
                {"role": "tool", "tool_call_id": call.id, "content": "Noted"} for call in message.tool_calls or ()
            ]
            turns += [message.model_dump(), *results]
        turns.append({"role": "user", "content": ASKED[0]})
        growing = client.create_partial(model=MODEL, messages=turns, response_model=Weather, max_retries=0)
        say(mode.name, list(growing)[-1])


def litellm() -> None:
    """Chats by two of its providers."""
    import litellm as library

    library.suppress_debug_info = True
    parameters = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}
    served = {"api_base": BASE_URL, "api_key": os.environ["OPENAI_API_KEY"], "max_retries": 0, "tools": [tool]}

    def complete(model: str, turns: list[dict[str, Any]], streamed: bool) -> Any:
        options = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
        answer = library.completion(model=model, messages=turns, **served, **options)
        return library.stream_chunk_builder(list(answer)) if streamed else answer

    for provider, streamed in product(("openai", "hosted_vllm"), (False, True)):
        turns: list[dict[str, Any]] = []
        for asked in ASKED:
            turns.append({"role": "user", "content": asked})
            answer = complete(f"{provider}/{MODEL}", turns, streamed)
            [call] = answer.choices[0].message.tool_calls
            said = get_weather(**json.loads(call.function.arguments))
            turns.append(answer.choices[0].message.model_dump())
            turns.append({"role": "tool", "tool_call_id": call.id, "content": said})
            answer = complete(f"{provider}/{MODEL}", turns, streamed)
            turns.append(answer.choices[0].message.model_dump())
            say(f"{provider} {answer.usage.completion_tokens > 0}", turns[-1]["content"])


LIBRARIES: dict[str, Callable[[], None]] = {each.__name__: each for each in (llamaindex, instructor, litellm)}
LIBRARIES[sys.argv[1]]()
