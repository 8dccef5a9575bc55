"""`POST /v1/embeddings` and vLLM's `POST /pooling`: a vector for each input, from an embedding model."""

from dataclasses import replace

from fairlane.gateway.answers.embeddings import EmbeddingAnswer, PoolingAnswer
from fairlane.gateway.dialects.pooling.embeddings import (
    MAX_INPUTS,
    EmbeddingRequest,
    parse_embeddings,
    parse_pooling,
)
from fairlane.gateway.errors import invalid
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.gateway.pipeline.prepare import Kind, Tokens

PATH, POOLING_PATH = "/v1/embeddings", "/pooling"


def _inputs(text: TextModel, request: EmbeddingRequest) -> list[Tokens]:
    size = text.vector_size
    if request.dimensions not in (None, size):
        raise invalid("dimensions", f"`dimensions` must be {size}, the size of this model's embeddings, or absent.")
    return [text.input(each, request.truncate_prompt_tokens) for each in request.inputs]


EMBEDDINGS = Kind(
    operation="embeddings",
    prompt_param="input",
    most_prompts=MAX_INPUTS,
    parse=parse_embeddings,
    prompts=_inputs,
    answer=EmbeddingAnswer,
    yields="embeddings",
)
POOLING = replace(EMBEDDINGS, operation="pooling", parse=parse_pooling, answer=PoolingAnswer)
