"""Agents with one tool, in pydantic-ai over two APIs and in OpenAI's Agents SDK, for the clients' own environment."""

import asyncio
import os
import sys

from agents import Agent, Runner, function_tool, set_tracing_disabled
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

MODEL = os.environ["OPENAI_MODEL"]
ASKED = "What is the weather in Paris?"


def get_weather(location: str) -> str:
    """Return the weather of a place."""
    return f"sunny in {location}"


async def main() -> None:
    """Ask each, and print what it answered from the tool's result."""
    models: dict[str, Model] = {
        "chat": OpenAIChatModel(MODEL),
        "responses": OpenAIResponsesModel(MODEL),
    }
    for name, model in models.items():
        answer = await PydanticAgent(model, tools=[get_weather]).run(ASKED)
        sys.stdout.write(f"{name}: {answer.output}\n")
    set_tracing_disabled(True)
    agent = Agent(name="Weather", model=MODEL, tools=[function_tool(get_weather)])
    result = await Runner.run(agent, ASKED)
    sys.stdout.write(f"agents: {result.final_output}\n")


asyncio.run(main())
