"""The body of `POST /v1/embeddings`, parsed into a valid request."""

from typing import Annotated, Literal

from fairlane.common.views import about
from fairlane.gateway.dialects.openai.neutral import CALLER_HINTS, Neutral, hint
from fairlane.gateway.dialects.openai.reading import Reading, checked
from fairlane.gateway.dialects.openai.request_bodies import Count, Prompts, RequestBody
from fairlane.gateway.dialects.openai.requests import GenerationRequest, Prompt, stated_fields
from fairlane.gateway.errors import invalid

# Inputs per request, as in OpenAI's API.
MAX_INPUTS = 2_048
Encoding = Literal["float", "base64"]
NEUTRAL_EMBEDDINGS: Neutral = {
    **CALLER_HINTS,
    "add_special_tokens": (True,),
    "input_type": (),
    "priority": hint(0),
    "stream": (False,),
    "truncate_prompt_tokens": (),
}


class EmbeddingsBody(RequestBody):
    """The body of `POST /v1/embeddings`: one input or several, as text or as token ids."""

    input: Annotated[Prompts, about("Text or token ids, one or several")]
    encoding_format: Annotated[Encoding | None, about("Encoding of the vectors")] = None
    dimensions: Annotated[Count | None, about("Length of each vector")] = None


class EmbeddingRequest(GenerationRequest, frozen=True, kw_only=True):
    """A valid `POST /v1/embeddings`; each of its jobs has one or more inputs and ends with its prefill."""

    inputs: tuple[Prompt, ...]
    encoding: Encoding = "float"
    # Length of each vector; None for the model's own.
    dimensions: int | None = None


def parse_embeddings(body: bytes, reading: Reading | None = None) -> EmbeddingRequest:
    """Parse a body. Raises ApiError naming the field."""
    asked = checked(EmbeddingsBody, NEUTRAL_EMBEDDINGS, body, reading)
    if len(asked.input) > MAX_INPUTS:
        raise invalid("input", f"`input` must have at most {MAX_INPUTS} items.")
    return EmbeddingRequest(
        **stated_fields(asked),
        inputs=asked.input,
        encoding=asked.encoding_format or "float",
        dimensions=asked.dimensions,
        max_tokens=1,
        max_tokens_param="input",
    )
