"""LlamaIndex: a chat, a stream, an object of a pydantic class, a call of a tool, and what is told at a limit.

Reads OPENAI_API_KEY, and OPENAI_BASE_URL where the gateway is not on this machine.
"""

import os
import sys
from typing import Literal

import openai
from llama_index.core import PromptTemplate
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

MODEL = "SmolLM2-135M-Instruct"
BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")


class City(BaseModel):
    """What the model has to tell."""

    name: str
    country: str


def weather(city: str, unit: Literal["celsius", "fahrenheit"]) -> str:
    """The weather of a city."""
    return f"It is 18 degrees {unit} in {city}."


def main() -> None:
    """Print what comes of each."""
    llm = OpenAILike(
        model=MODEL,
        api_base=BASE_URL,
        api_key=os.environ["OPENAI_API_KEY"],
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=8192,
        temperature=0,
        max_tokens=48,
        max_retries=0,  # LlamaIndex tries again whatever is refused, also what a spent day refuses
    )
    try:
        print(llm.chat([ChatMessage("What is the capital of France?")]).message.content)

        for piece in llm.stream_chat([ChatMessage("Say in one sentence what a river is.")]):
            print(piece.delta, end="", flush=True)
        print()

        city = llm.structured_predict(City, PromptTemplate("Which city has the {sight}?"), sight="Eiffel Tower")
        print(repr(city))

        tool = FunctionTool.from_defaults(weather)
        print(llm.predict_and_call([tool], "What is the weather in Paris?", tool_required=True))
    except openai.RateLimitError as refused:
        after = refused.response.headers["retry-after"]
        sys.exit(f"{refused.code}: it would fit in {after} s")


if __name__ == "__main__":
    main()
