"""A worker for tests whose model embeds or scores, by the lengths of its inputs."""

from array import array
from typing import Any

import msgspec
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from fairlane.scheduler.protocol.messages import Finished, Lease, ModelCard, Outcome, TokenDelta
from fairlane.worker.reports import Publication
from tests.support.gateway.cards import byte_level_card
from tests.support.gateway.hand_worker import HandWorker

BEGIN, END = "<|im_start|>", "<|im_end|>"


def embedding_card(model: str = "tiny") -> ModelCard:
    return msgspec.structs.replace(byte_level_card(), model=model, embedding_size=2)


def scoring_card(model: str = "tiny") -> ModelCard:
    card = byte_level_card()
    tokenizer = Tokenizer.from_str(card.tokenizer_json)
    tokenizer.post_processor = TemplateProcessing(
        single=f"{BEGIN} $A {END}",
        pair=f"{BEGIN} $A {END} {END} $B {END}",
        special_tokens=[(mark, tokenizer.token_to_id(mark)) for mark in (BEGIN, END)],
    )
    return msgspec.structs.replace(card, model=model, tokenizer_json=tokenizer.to_str(), embedding_size=1, scores=True)


class PoolingWorker(HandWorker):
    """Each number of a vector is a quarter of the tokens of its input, or of the second part of its pair."""

    def _step(self, lease: Lease) -> None:
        job, size = self.leases.pop(lease.job.job_id).job, self.card.embedding_size
        assert isinstance(size, int)
        lengths = job.inputs[1::2] if self.card.scores is True else job.inputs
        vectors = array("f", [length / 4 for length in lengths for _ in range(size)]).tobytes()
        named: dict[str, Any] = {"job_id": job.job_id, "epoch": lease.epoch, "worker_id": self.worker_id}
        delta = TokenDelta(
            **named, choice=0, first_index=0, token_ids=(), finish_reason="stop", embedding=vectors, queued_ms=1.0
        )
        end = Finished(**named, outcome=Outcome.FINISHED)
        self._may_find = True
        self.outlet.put([Publication(lease, (delta, end), cost=1.0, ends=Outcome.FINISHED)])
