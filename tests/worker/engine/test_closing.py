"""Outputs that are closed before their length limit, whatever a model draws."""

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer

from fairlane.scheduler.protocol.messages import ModelCard
from fairlane.worker.engine.closing import CLOSING_TOKENS
from fairlane.worker.engine.grammar import Constraint, Grammars
from tests.support.gateway.cards import byte_level_card, metaspace_card

TEXT, NUMBER = {"type": "string"}, {"type": "number"}


def objects(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


NAMED = objects(["name"], name={"type": "string", "minLength": 4})
SCHEMAS: dict[str, Any] = {
    "a text": objects(["a"], a=TEXT),
    "a text of a pattern": {"type": "string", "pattern": "^[a-z}]+[0-9]{3}$"},
    "any object": {"type": "object"},
    "any list": {"type": "array"},
    "lists of objects": {"type": "array", "items": NAMED},
    "numbers": objects(["a", "b"], a=NUMBER, b={"type": "integer"}),
    "optional objects": {
        **objects(["last"], first=NAMED, second=objects([], deep=NAMED), last={"enum": [1, None]}),
        "additionalProperties": False,
    },
    "a date": objects(["on"], on={"type": "string", "format": "date"}, more={}),
    "a tree": objects(["value", "inner"], value=TEXT, inner={"type": "array", "items": {"$ref": "#"}}),
}
CARDS = {"bytes": byte_level_card, "text": metaspace_card}


class Vocabulary:
    """One model's."""

    def __init__(self, card: ModelCard) -> None:
        self.grammars, self.end = Grammars(card), card.eos_token_ids[0]
        self._tokenizer = Tokenizer.from_str(card.tokenizer_json)

    def text(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens)


@pytest.fixture(scope="module", params=CARDS)
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return Vocabulary(CARDS[request.param]())


def grammar_of(schema: object, *, indented: bool) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_flexible": indented})


def drawn(vocabulary: Vocabulary, grammar: str, most: int, chooser: random.Random) -> tuple[list[int], bool]:
    """Tokens of a model that draws whatever it may, and whether it ended them."""
    grammars = vocabulary.grammars
    constraint = Constraint(grammars.compile(grammar).result().deep_copy(), closing=grammars.closing())
    tokens: list[int] = []
    while len(tokens) < most:
        grammars.begin([constraint])
        allowed = np.flatnonzero(np.unpackbits(constraint.take().bits, bitorder="little"))
        token = int(chooser.choice(allowed))
        if constraint.refuses(token, most - len(tokens) - 1):
            continue
        if token == vocabulary.end:
            return tokens, True
        tokens.append(token)
        constraint.append(token, was_likeliest=False)
    return tokens, False


@pytest.mark.parametrize("indented", [False, True])
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_an_output_is_closed_before_its_limit(vocabulary: Vocabulary, schema: Any, indented: bool) -> None:
    grammar = grammar_of(schema, indented=indented)
    for seed in range(6):
        chooser = random.Random(seed)
        tokens, has_ended = drawn(vocabulary, grammar, chooser.randrange(60, 2 * CLOSING_TOKENS), chooser)

        assert has_ended
        jsonschema.validate(json.loads(vocabulary.text(tokens)), schema)
