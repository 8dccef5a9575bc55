"""Instructor: an object of a pydantic class, one that fills up as it comes, and what is told at a limit.

Reads OPENAI_API_KEY, and OPENAI_BASE_URL where the gateway is not on this machine.
"""

import os
import sys
from typing import Literal

import instructor
import openai
from instructor.core import InstructorRetryException
from pydantic import BaseModel, ConfigDict

MODEL = "SmolLM2-135M-Instruct"
BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")


class City(BaseModel):
    """What the model has to tell, and nothing beside it."""

    model_config = ConfigDict(extra="forbid")

    name: str
    country: str
    kind: Literal["capital", "town", "village"]


def main() -> None:
    """Print the object whole, then as it grows."""
    # JSON_SCHEMA and TOOLS are held to the class by grammar; with the mode JSON the class is no more than asked for.
    client = instructor.from_openai(openai.OpenAI(base_url=BASE_URL), mode=instructor.Mode.JSON_SCHEMA)
    try:
        city = client.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Which city has the Eiffel Tower?"}],
            response_model=City,
            temperature=0,
            max_tokens=96,
        )
        print(repr(city))

        growing = client.create_partial(
            model=MODEL,
            messages=[{"role": "user", "content": "Which city has the Brandenburg Gate?"}],
            response_model=City,
            temperature=0,
            max_tokens=96,
        )
        for city in growing:
            print(city)
    except InstructorRetryException as failed:
        refused = failed.__cause__
        if not isinstance(refused, openai.RateLimitError):
            raise
        after = refused.response.headers["retry-after"]
        sys.exit(f"{refused.code}: it would fit in {after} s")


if __name__ == "__main__":
    main()
