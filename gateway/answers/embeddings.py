"""The responses of OpenAI's `/v1/embeddings` and vLLM's `/pooling`: a vector for each input, in their order."""

import base64
import sys
from array import array
from collections.abc import Iterator

import msgspec

from fairlane.gateway.answers.builder import AnswerBuilder, Json
from fairlane.gateway.dialects.pooling.embeddings import EmbeddingRequest

FLOAT_BYTES = 4
_encode = msgspec.json.Encoder().encode


class EmbeddingAnswer(AnswerBuilder):
    """The response of an endpoint that does not stream."""

    def whole(self) -> Json:
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": self._encoded(vector)}
                for index, vector in enumerate(self._vectors())
            ],
            "model": self._model.name,
            "usage": self._usage(),
        }

    def _head(self) -> Json:
        """Return what vLLM's lists begin with."""
        head: Json = {"id": self.response_id, "object": "list", "created": self._created_s}
        return {**head, "model": self._model.name}

    def _usage(self) -> dict[str, int]:
        charged = self.usage().prompt_tokens
        return {"prompt_tokens": charged, "total_tokens": charged}

    def ending(self) -> bytes:
        return b""

    def _vectors(self) -> Iterator[bytes]:
        width = FLOAT_BYTES * self._model.text.vector_size
        for _, choice in sorted(self._choices.items()):
            for at in range(0, len(choice.embedding), width):
                yield choice.embedding[at : at + width]

    def _encoded(self, vector: bytes) -> str | msgspec.Raw:
        """Return one vector's JSON. Vectors are encoded one by one: encoding all at once would block other threads."""
        request = self._request
        if isinstance(request, EmbeddingRequest) and request.encoding == "base64":
            return base64.b64encode(vector).decode()
        numbers: array[float] = array("f", vector)
        if sys.byteorder != "little":
            numbers.byteswap()
        return msgspec.Raw(_encode(numbers.tolist()))


class PoolingAnswer(EmbeddingAnswer):
    """vLLM's list of vectors."""

    ID_PREFIX = "pool-"

    def whole(self) -> Json:
        vectors = enumerate(self._vectors())
        data = [{"index": index, "object": "pooling", "data": self._encoded(vector)} for index, vector in vectors]
        return {**self._head(), "data": data, "usage": self._usage()}
