"""Answers of a given form: JSON by a pydantic model, and one of a few words.

Reads OPENAI_API_KEY, and OPENAI_BASE_URL where the gateway is not on this machine.
"""

import os
from typing import Literal

import openai
from pydantic import BaseModel

MODEL = "SmolLM2-135M-Instruct"
BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")


class City(BaseModel):
    """What the model has to tell."""

    name: str
    country: str
    kind: Literal["capital", "town", "village"]


def main() -> None:
    """Print a city, and a verdict."""
    with openai.OpenAI(base_url=BASE_URL) as client:
        answer = client.chat.completions.parse(
            model=MODEL,
            messages=[{"role": "user", "content": "Which city has the Eiffel Tower?"}],
            response_format=City,
            temperature=0,
            max_tokens=96,
        )
        print(repr(answer.choices[0].message.parsed))

        verdict = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Is this a complaint? 'My parcel has not come.'"}],
            temperature=0,
            extra_body={"structured_outputs": {"choice": ["complaint", "praise", "question"]}},
        )
        print(verdict.choices[0].message.content)


if __name__ == "__main__":
    main()
