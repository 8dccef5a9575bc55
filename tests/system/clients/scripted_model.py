"""A worker whose model does what scripted clients ask: it calls a tool, follows a grammar, and answers from results.

It stands in for a capable model, so that a client's own behaviour is tested and not a small model's."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
from llguidance import LLMatcher, LLTokenizer

from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.scheduler.protocol.messages import Lease, ModelCard
from tests.support.gateway.hand_worker import HandWorker
from tests.support.gateway.tool_models import tool_card

CONTEXT = 1_000_000
MOST_GUIDED = 600
# What a grammar is followed with, in this order, as soon as a text has begun: the shortest way to its end.
_CLOSERS = ('"', "}", "]", ":", ",", "\n", " ", "1", "t", "e")
_TOOL = re.compile(r'"name": ?"([\w.-]+)"')


@cache
def _text(card: bytes) -> TextModel:
    return TextModel(msgspec.json.decode(card, type=ModelCard))


@cache
def _guide(card: bytes) -> LLTokenizer:
    decoded = msgspec.json.decode(card, type=ModelCard)
    return LLTokenizer(decoded.tokenizer_json, n_vocab=decoded.vocab_size, eos_token=list(decoded.eos_token_ids))


def scripted_card(model: str) -> ModelCard:
    """Return the card of a model that thinks and calls tools, with room for an agent's prompt."""
    return msgspec.structs.replace(tool_card("Qwen 3"), model=model, context_length=CONTEXT)


@dataclass
class ScriptedModel(HandWorker):
    """Calls the first offered tool that `calls` knows, until the conversation ends in a result; then it answers."""

    calls: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Answers by a pattern that the last turn matches; else `words`.
    answers: Mapping[str, str] = field(default_factory=dict)
    scripts: dict[str, Sequence[int]] = field(default_factory=dict)
    # The text of each job's prompt, in order.
    prompts: list[str] = field(default_factory=list)

    def start_job(self, lease: Lease, *, again: bool) -> None:
        super().start_job(lease, again=again)
        card = msgspec.json.encode(self.card)
        prompt = _guide(card).decode_str(list(lease.job.prompt))
        self.prompts.append(prompt)
        wanted = [*_text(card).encode(self.answer_to(prompt)), self.card.eos_token_ids[0]]
        grammar = lease.job.grammar
        self.scripts[lease.job.job_id] = _guided(card, grammar, wanted, self.card) if grammar else wanted

    def answer_to(self, prompt: str) -> str:
        """Return the words that follow a prompt."""
        turn = prompt[prompt.rfind("<|im_start|>user") :]
        for pattern, words in self.answers.items():
            if re.search(pattern, turn):
                return words
        offered = _TOOL.findall(prompt.partition("</tools>")[0])
        for name in () if "<tool_response>" in turn else offered:
            if name in self.calls:
                called = json.dumps({"name": name, "arguments": self.calls[name]}, ensure_ascii=False)
                return f"<tool_call>\n{called}\n</tool_call>"
        return self.words

    def _next(self, lease: Lease, index: int) -> int:
        script = self.scripts[lease.job.job_id]
        return script[index % len(script)]


def _guided(card: bytes, grammar: str, wanted: Sequence[int], of: ModelCard) -> list[int]:
    """Return tokens that a grammar allows: those wanted while it allows them, then the shortest end."""
    tokenizer, end = _guide(card), of.eos_token_ids[0]
    matcher = LLMatcher(tokenizer, grammar)
    valid = matcher.validate_tokens(list(wanted))
    said = list(wanted[:valid])
    if valid == len(wanted):
        return said
    matcher.consume_tokens(said)
    closers = [tokenizer.tokenize_str(text)[0] for text in _CLOSERS]
    while len(said) < MOST_GUIDED and not matcher.is_stopped():
        mask = matcher.compute_logit_bias()
        allowed = [token for token, bias in enumerate(mask) if bias]
        token = next((each for each in (end, *closers) if each in allowed), allowed[0] if allowed else end)
        if token == end:
            break
        matcher.consume_tokens([token])
        said.append(token)
    return [*said, end]
