"""`POST /v1/score` and `POST /v1/rerank`: scores of pairs of texts, from a model that reads both at once."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from fairlane.gateway.answers.scores import RerankAnswer, ScoreAnswer
from fairlane.gateway.dialects.pooling.scores import MAX_PAIRS, PairsRequest, parse_rerank, parse_score
from fairlane.gateway.errors import invalid
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.gateway.pipeline.prepare import Kind, Tokens

SCORE_PATHS = ("/v1/score", "/score")
RERANK_PATHS = ("/v1/rerank", "/rerank", "/v2/rerank")
# Of one request: its query is computed, and held, once for each document.
MAX_PAIR_TOKENS = 4 * 2**20


def _pairs(text: TextModel, request: PairsRequest) -> list[Tokens]:
    """Return the two parts of each pair, with the marks that the model expects around them."""
    before, between, after = text.pair_marks
    marks, most = len(before) + len(between) + len(after), request.truncate_prompt_tokens
    encoded = cache(text.start)
    parts: list[Tokens] = []
    total = 0
    for first, second in _texts(request):
        query = encoded(first, _least(request.max_query_tokens, most))
        document = text.start(second, _least(request.max_document_tokens, most))
        if most is not None:
            query, document = _cut(query, document, max(0, most - marks))
        total += len(query) + len(document) + marks
        if total > MAX_PAIR_TOKENS:
            param = request.max_tokens_param
            raise invalid(param, f"`{param}`: all pairs together must have at most {MAX_PAIR_TOKENS} tokens.")
        parts += (*before, *query, *between), (*document, *after)
    return parts


def _texts(request: PairsRequest) -> Iterator[tuple[str, str]]:
    queries, documents = request.queries, request.documents
    return zip(queries * len(documents) if len(queries) == 1 else queries, documents, strict=True)


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _cut(query: Tokens, document: Tokens, room: int) -> tuple[Tokens, Tokens]:
    """Cut the end of the longer text, then of both alike, as tokenizers do."""
    query = query[: max(room // 2, room - len(document))]
    return query, document[: room - len(query)]


SCORE = Kind(
    operation="score",
    prompt_param="text_2",
    most_prompts=MAX_PAIRS,
    parse=parse_score,
    prompts=_pairs,
    answer=ScoreAnswer,
    yields="scores",
    parts=2,
)
RERANK = replace(SCORE, operation="rerank", prompt_param="documents", parse=parse_rerank, answer=RerankAnswer)
