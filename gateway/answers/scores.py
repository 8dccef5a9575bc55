"""The responses of `/score` and `/rerank`: a score for each pair, in their order or from the best."""

import struct

from fairlane.gateway.answers.builder import Json
from fairlane.gateway.answers.embeddings import EmbeddingAnswer
from fairlane.gateway.dialects.pooling.scores import PairsRequest


class ScoreAnswer(EmbeddingAnswer):
    """vLLM's list of scores."""

    ID_PREFIX = "score-"

    def whole(self) -> Json:
        data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(self._scores())]
        return {**self._head(), "data": data, "usage": self._usage()}

    def _scores(self) -> list[float]:
        return [score for vector in self._vectors() for (score,) in struct.iter_unpack("<f", vector)]


class RerankAnswer(ScoreAnswer):
    """Results as of Jina, Cohere and vLLM, from the most relevant document."""

    ID_PREFIX = "rerank-"

    def whole(self) -> Json:
        request, results = self._request, list[Json]()
        ranked = sorted(enumerate(self._scores()), key=lambda pair: -pair[1])
        documents = request.documents if isinstance(request, PairsRequest) and request.returns_documents else ()
        for index, score in ranked[: request.top_n if isinstance(request, PairsRequest) else None]:
            result: Json = {"index": index, "relevance_score": score}
            if documents:
                result["document"] = {"text": documents[index]}
            results.append(result)
        return {"id": self.response_id, "model": self._model.name, "results": results, "usage": self._usage()}
