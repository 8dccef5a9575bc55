"""Fits a request to its model: finds the model, checks fields against it, and cuts output to its context."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TypeVar

import msgspec

from fairlane.gateway.dialects.openai.requests import GenerationRequest
from fairlane.gateway.errors import ApiError, invalid, model_not_found
from fairlane.gateway.fleet import FleetCache, ServedModel
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.scheduler.protocol.messages import Yields

# What a model of each kind makes, and where, for requests that ask it for something else.
_MAKES: Mapping[Yields, tuple[str, str]] = {
    "text": ("generates text", ""),
    "embeddings": ("makes embeddings", ": use /v1/embeddings"),
    "scores": ("scores pairs of texts", ": use /v1/rerank or /v1/score"),
}
# Numbers in the vectors of one job, whose result is one message: 1 MiB.
MAX_VECTOR_NUMBERS = 262_144
# Of one request, over all its prompts and choices: about 100 MB while they are collected.
MAX_PROMPT_LOGPROBS = 500_000
_Generation = TypeVar("_Generation", bound=GenerationRequest)
_Tokens = tuple[int, ...]


def allowed_model(fleet_cache: FleetCache, name: str, caller: Caller) -> ServedModel:
    """Return a model that the caller may use, by its name or one of the tenant's aliases.

    Raises ApiError `model_not_found`, `model_not_allowed`, and as `FleetCache.find` does."""
    name = caller.identity.tenant.model_aliases.get(name, name)
    found = fleet_cache.find((name,))
    if not found:
        raise model_not_found()
    if not _may_use(caller, name):
        raise ApiError("This key may not use the model.", "model_not_allowed", "model")
    return found[0]


def _may_use(caller: Caller, model: str) -> bool:
    tenants, keys = caller.identity.tenant.models, caller.identity.key.scopes.models
    return (tenants is None or model in tenants) and (keys is None or model in keys)


def wrong_kind(text: TextModel, needed: Yields) -> ApiError:
    """Return the error for a model that makes something else of its input than the endpoint needs."""
    makes, use = _MAKES[text.card.yields]
    return invalid("model", f"This model {makes} and makes no {needed}{use}.")


def check_scores(request: GenerationRequest, prompts: Sequence[_Tokens]) -> None:
    """Raise ApiError if too many log-probabilities of prompts are requested."""
    found = sum(map(len, prompts)) * request.n * (1 + (request.scored or 0))
    if found > MAX_PROMPT_LOGPROBS:
        param = "echo" if request.prompt_logprobs is None else "prompt_logprobs"
        raise invalid(param, f"`{param}`: {found} log-probabilities of prompts; at most {MAX_PROMPT_LOGPROBS}.")


def check_fields(request: GenerationRequest, text: TextModel) -> None:
    """Raise ApiError for a token id outside the vocabulary, or a field that the model's engine does not take."""
    biased = request.draw.get("logit_bias")
    named = [token for token, _ in biased] if biased else ()
    allowed = request.draw.get("allowed_token_ids", ())
    ids = (("logit_bias", named), ("stop_token_ids", request.stop_token_ids), ("allowed_token_ids", allowed))
    for field, tokens in ids:
        if tokens and max(tokens) >= text.card.vocab_size:
            raise invalid(field, f"`{field}` contains a token id that is not below {text.card.vocab_size}.")
    for field in text.refused_fields:
        param = request.asking(field)
        if param is not None:
            raise invalid(param, f"`{param}` cannot be served: the engine of this model does not take it.")


def cut_output(request: _Generation, model: ServedModel, prompts: Sequence[_Tokens]) -> _Generation:
    """Return the request with an output limit that the context has room for, and the field named as ignored."""
    most = request.max_tokens
    if most is None or not exceeds(max(map(len, prompts)), most, model.context_length):
        return request
    ignored = (*request.ignored, request.max_tokens_param)
    # One of several prompts may have room for all of it; a single one has not.
    kept = most if len(prompts) > 1 else None
    return msgspec.structs.replace(request, max_tokens=kept, is_cut=True, ignored=ignored)


def exceeds(prompt_tokens: int, output_tokens: int, context_length: int) -> bool:
    """Return whether an output limit goes beyond the context."""
    return prompt_tokens + output_tokens > context_length


def room_after(prompt_tokens: int, longest: int) -> int:
    """Return the output limit of a request without one, or with one beyond the context. `longest`: the tokens that a
    worker holds of one choice."""
    return max(1, longest - prompt_tokens)


def pack_inputs(
    inputs: Sequence[_Tokens], context_length: int, *, most: int = MAX_VECTOR_NUMBERS, parts: int = 1
) -> tuple[list[_Tokens], list[list[int]]]:
    """Pack consecutive inputs into few jobs, because a thousand would fill the lane's queue.

    `most`: inputs of a job. `parts`: how many entries of `inputs` are one of them. Return the jobs' prompts, and the
    lengths of the entries in each."""
    packs: list[list[_Tokens]] = []
    room = 0
    for at in range(0, len(inputs), parts):
        each = inputs[at : at + parts]
        size = sum(map(len, each))
        if not packs or size > room or len(packs[-1]) >= most * parts:
            packs.append([])
            room = context_length
        packs[-1] += each
        room -= size
    return [tuple(chain.from_iterable(pack)) for pack in packs], [[*map(len, pack)] for pack in packs]
