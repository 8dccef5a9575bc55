"""`POST /v1/completions`: prompts as they are, one flight each; their choices stand one after the other."""

from gateway.bodies import MAX_SEQUENCES
from gateway.logprobs import completion_logprobs
from gateway.prepare import Kind, Tokens
from gateway.schemas import CompletionRequest, parse_completion
from gateway.text import TextModel

PATH = "/v1/completions"


def _prompts(text: TextModel, request: CompletionRequest) -> list[Tokens]:
    return [text.prompt(prompt) for prompt in request.prompts]


COMPLETION = Kind(
    name="completion",
    id_prefix="cmpl-",
    operation="text_completion",
    prompt_param="prompt",
    most_prompts=MAX_SEQUENCES,
    parse=parse_completion,
    prompts=_prompts,
    logprobs=completion_logprobs,
)
