"""The bodies of `POST /v1/embeddings` and of vLLM's `POST /pooling`, parsed into a valid request."""

from typing import Annotated, Literal

from fairlane.common.views import about
from fairlane.gateway.dialects.openai.neutral import CALLER_HINTS, Neutral, hint
from fairlane.gateway.dialects.openai.reading import Reading, checked
from fairlane.gateway.dialects.openai.request_bodies import Count, Kept, Prompts, RequestBody
from fairlane.gateway.dialects.openai.requests import Prompt, stated_fields
from fairlane.gateway.dialects.pooling.requests import PoolingRequest
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
    "truncation_side": ("right",),
    "use_activation": (True,),
}


class EmbeddingsBody(RequestBody):
    """The body of `POST /v1/embeddings`: one input or several, as text or as token ids."""

    input: Annotated[Prompts, about("Text or token ids, one or several")]
    encoding_format: Annotated[Encoding | None, about("Encoding of the vectors")] = None
    dimensions: Annotated[Count | None, about("Length of each vector")] = None
    truncate_prompt_tokens: Annotated[
        Kept | None, about("Tokens to keep of each input, from its start; -1: the context")
    ] = None


class PoolingBody(EmbeddingsBody):
    """The body of `POST /pooling`."""

    task: Annotated[Literal["embed"] | None, about("A vector for each input")] = None


class EmbeddingRequest(PoolingRequest, frozen=True, kw_only=True):
    """A valid request for vectors."""

    inputs: tuple[Prompt, ...]
    encoding: Encoding = "float"
    # Length of each vector; None for the model's own.
    dimensions: int | None = None


def parse_embeddings(
    body: bytes, reading: Reading | None = None, *, kind: type[EmbeddingsBody] = EmbeddingsBody
) -> EmbeddingRequest:
    """Parse a body. Raises ApiError naming the field."""
    asked = checked(kind, NEUTRAL_EMBEDDINGS, body, reading)
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


def parse_pooling(body: bytes, reading: Reading | None = None) -> EmbeddingRequest:
    """Parse a body of `POST /pooling`. Raises ApiError naming the field."""
    return parse_embeddings(body, reading, kind=PoolingBody)
