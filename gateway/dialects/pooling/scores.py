"""The bodies of vLLM's `/score`, and of Jina's, Cohere's and vLLM's `/rerank`, parsed into pairs of texts."""

from typing import Annotated, Any

from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError

from fairlane.common.views import about
from fairlane.gateway.dialects.openai.field_types import as_unicode
from fairlane.gateway.dialects.openai.neutral import CALLER_HINTS, Neutral, hint
from fairlane.gateway.dialects.openai.reading import Reading, checked
from fairlane.gateway.dialects.openai.request_bodies import Kept, RequestBody
from fairlane.gateway.dialects.openai.requests import stated_fields
from fairlane.gateway.dialects.pooling.requests import PoolingRequest
from fairlane.gateway.errors import invalid

# Pairs per request.
MAX_PAIRS = 2_048
NEUTRAL_SCORES: Neutral = {
    **CALLER_HINTS,
    "activation": (True,),
    "chat_template": (),
    "chat_template_kwargs": (),
    "instruct": (),
    "instruction": (),
    "max_chunks_per_doc": (),
    "mm_processor_kwargs": hint(),
    "priority": hint(0),
    "rank_fields": (["text"],),
    "request_id": hint(),
    "softmax": (False,),
    "stream": (False,),
    "truncation_side": ("right",),
    "use_activation": (True,),
}


def _text(value: object) -> str:
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise PydanticCustomError("text", "must be text, or an object with a text in `text`; only text is supported")
    return as_unicode(text)


def _texts(value: object) -> tuple[str, ...]:
    listed = value if isinstance(value, list) else [value]
    if not 0 < len(listed) <= MAX_PAIRS:
        raise PydanticCustomError("texts", f"must have 1 to {MAX_PAIRS} items")
    return tuple(_text(each) for each in listed)


_Text = Annotated[str, PlainValidator(_text, json_schema_input_type=str | dict[str, Any])]
_Texts = Annotated[
    tuple[str, ...],
    PlainValidator(_texts, json_schema_input_type=str | dict[str, Any] | list[str | dict[str, Any]]),
]
_Most = Annotated[int, Field(ge=0, lt=2**63)]


class PairsBody(RequestBody):
    """The fields of every request that scores pairs of texts."""

    truncate_prompt_tokens: Annotated[Kept | None, about("Tokens to keep of each pair; -1: the context")] = None
    max_tokens_per_query: Annotated[_Most | None, about("Tokens to keep of the query; 0: all")] = None
    max_tokens_per_doc: Annotated[_Most | None, about("Tokens to keep of each document; 0: all")] = None


class RerankBody(PairsBody):
    """The body of `POST /v1/rerank`: a query and the documents to order."""

    query: Annotated[_Text, about("The query")]
    documents: Annotated[_Texts, about(f"At most {MAX_PAIRS:,} documents")]
    top_n: Annotated[_Most | None, about("Results to return; 0 or absent: all")] = None
    return_documents: Annotated[bool | None, about("False: results have no `document`")] = None


class ScoreBody(PairsBody):
    """The body of `POST /v1/score`: one text and several, or as many of both."""

    text_1: Annotated[_Texts | None, about("One text, or one for each of `text_2`")] = None
    text_2: Annotated[_Texts | None, about("The texts to score against it")] = None
    queries: Annotated[_Texts | None, about("As `text_1`")] = None
    documents: Annotated[_Texts | None, about("As `text_2`")] = None
    items: Annotated[_Texts | None, about("As `text_2`")] = None
    data_1: Annotated[_Texts | None, about("As `text_1`")] = None
    data_2: Annotated[_Texts | None, about("As `text_2`")] = None


_NAMES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))


class PairsRequest(PoolingRequest, frozen=True, kw_only=True):
    """A valid request for scores; its inputs are pairs."""

    # One for all documents, or one for each.
    queries: tuple[str, ...]
    documents: tuple[str, ...]
    max_query_tokens: int | None = None
    max_document_tokens: int | None = None
    # Results of a ranking.
    top_n: int | None = None
    returns_documents: bool = True


def parse_rerank(body: bytes, reading: Reading | None = None) -> PairsRequest:
    """Parse a body. Raises ApiError naming the field."""
    asked = checked(RerankBody, NEUTRAL_SCORES, body, reading)
    return PairsRequest(
        **_common(asked, "documents"),
        queries=(asked.query,),
        documents=asked.documents,
        top_n=asked.top_n or None,
        returns_documents=asked.return_documents is not False,
    )


def parse_score(body: bytes, reading: Reading | None = None) -> PairsRequest:
    """Parse a body. Raises ApiError naming the field."""
    asked = checked(ScoreBody, NEUTRAL_SCORES, body, reading)
    first, second = next((names for names in _NAMES if all(getattr(asked, each) for each in names)), _NAMES[0])
    queries, documents = getattr(asked, first), getattr(asked, second)
    for name, texts in ((first, queries), (second, documents)):
        if texts is None:
            raise invalid(name, f"`{name}` is required.")
    if len(queries) not in (1, len(documents)):
        raise invalid(first, f"`{first}` must be one text, or as many as `{second}` has: {len(documents)}.")
    return PairsRequest(**_common(asked, second), queries=queries, documents=documents)


def _common(asked: PairsBody, param: str) -> dict[str, Any]:
    return {
        **stated_fields(asked),
        "max_tokens": 1,
        "max_tokens_param": param,
        "max_query_tokens": asked.max_tokens_per_query or None,
        "max_document_tokens": asked.max_tokens_per_doc or None,
    }
