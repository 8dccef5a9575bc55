"""System messages after others: as they are where the template tells the model of them, else in the user's turns."""

import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer

from fairlane.gateway.dialects.openai.requests import Turn
from fairlane.gateway.model_text.strict_turns import late_system_as_user
from fairlane.gateway.model_text.tokenizer import TextModel
from tests.support.counted import calls_of
from tests.support.gateway.cards import CHATML, byte_level_card

STRICT = (
    "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "[{{ message.role }}]{{ message.content }}{% endfor %}"
)
DEAF = (
    "{% for message in messages %}{% if message.role != 'system' or loop.first %}"
    "[{{ message.role }}]{{ message.content }}{% endif %}{% endfor %}"
)
FIRST = Turn(role="system", content="Be short.")
ASKED = Turn(role="user", content="Hello")
LATE = Turn(role="system", content="Be kind.")
SAID = Turn(role="assistant", content="Hi.")


def read(template: str, *turns: Turn) -> str:
    card = byte_level_card(template)
    prompt = TextModel(card).chat_prompt(turns)
    return str(Tokenizer.from_str(card.tokenizer_json).decode(list(prompt), skip_special_tokens=False))


def test_a_template_that_takes_them_is_given_them() -> None:
    assert "<|im_start|>system\nBe kind.<|im_end|>" in read(CHATML, FIRST, ASKED, LATE)


@pytest.mark.parametrize("template", [STRICT, DEAF])
def test_elsewhere_the_user_says_them(template: str) -> None:
    late = "<system>\nBe kind.\n</system>"

    told = read(template, FIRST, ASKED, LATE, SAID, LATE, ASKED)

    assert told == f"[system]Be short.[user]Hello\n{late}[assistant]Hi.[user]{late}\nHello"


@pytest.mark.parametrize("template", [STRICT, DEAF])
def test_a_conversation_without_them_is_as_it_was(template: str) -> None:
    assert read(template, FIRST, ASKED, ASKED) == "[system]Be short.[user]Hello[user]Hello"


def test_system_messages_at_the_beginning_are_not_late() -> None:
    developer = Turn(role="developer", content="x")

    assert late_system_as_user([FIRST, developer, ASKED]) == [FIRST, developer, ASKED]
    assert late_system_as_user([FIRST, ASKED, developer]) != [FIRST, ASKED, developer]
    assert late_system_as_user([]) == []


def test_many_turns_become_one_at_once_and_not_one_after_the_other() -> None:
    turns = [FIRST, *[ASKED, LATE] * 500]

    assert calls_of(replace, lambda: late_system_as_user(turns)) == 1
    assert [turn.role for turn in late_system_as_user(turns)] == ["system", "user"]
