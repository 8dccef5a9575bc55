"""`POST /v1/embeddings`: a vector for each input, from an embedding model."""

from fairlane.gateway.answers.embeddings import EmbeddingAnswer
from fairlane.gateway.dialects.pooling.embeddings import MAX_INPUTS, EmbeddingRequest, parse_embeddings
from fairlane.gateway.errors import invalid
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.gateway.pipeline.prepare import Kind, Tokens

PATH = "/v1/embeddings"


def _inputs(text: TextModel, request: EmbeddingRequest) -> list[Tokens]:
    size = text.vector_size
    if request.dimensions not in (None, size):
        raise invalid("dimensions", f"`dimensions` must be {size}, the size of this model's embeddings, or absent.")
    return [text.input(each) for each in request.inputs]


EMBEDDINGS = Kind(
    operation="embeddings",
    prompt_param="input",
    most_prompts=MAX_INPUTS,
    parse=parse_embeddings,
    prompts=_inputs,
    answer=EmbeddingAnswer,
    yields="embeddings",
)
