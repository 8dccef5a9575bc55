"""Truncation of a conversation that is longer than the context: its oldest turns are dropped."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache

from fairlane.gateway.dialects.openai.requests import ChatRequest, Turn, is_system
from fairlane.gateway.model_text.tokenizer import PromptTooLong, TextModel

# Shares of the context that a truncated prompt leaves to the output: without a stated maximum, and at most.
_USUAL_SHARE, _LARGEST_SHARE = 4, 2


def truncated_prompt(text: TextModel, request: ChatRequest) -> tuple[int, ...]:
    """Return the prompt of the conversation, or of what is left of it after as few of its oldest turns as possible were
    dropped. Instructions at its beginning and its last user message stay. Raises as `chat_prompt` does."""
    context = text.card.context_length
    shorter = list(_shorter(request.messages))

    @cache
    def prompt(place: int) -> tuple[int, ...] | int:
        # A number of tokens if it is too long: a kept exception would keep the request alive by its traceback.
        try:
            head, first = shorter[place]
            turns = [*head, *request.messages[first:]]
            return text.chat_prompt(turns, request.offered_tools, request.rendering, media=request.media)
        except PromptTooLong as long:
            return long.least_tokens

    def fits(place: int, most: int) -> bool:
        found = prompt(place)
        return not isinstance(found, int) and len(found) <= most

    place = 0
    if not fits(0, context - 1):
        room = context - min(request.max_tokens or context // _USUAL_SHARE, context // _LARGEST_SHARE)
        last = len(shorter) - 1
        place = min(last, bisect_left(range(len(shorter)), True, key=lambda place: fits(place, room)))
    found = prompt(place)
    if isinstance(found, int):
        raise PromptTooLong(found)
    return found


def _shorter(turns: Sequence[Turn]) -> Iterator[tuple[Sequence[Turn], int]]:
    """Yield the conversation from its longest form to its shortest: from each user message on, then the last one with
    ever fewer of the turns after it. A result never comes without its call.

    Each form is what it begins with, and the index of the first turn of the rest."""
    first = next((index for index, turn in enumerate(turns) if not is_system(turn)), len(turns))
    head = turns[:first]
    yield head, first
    asked = [index for index, turn in enumerate(turns) if turn.role == "user" and index >= first]
    yield from ((head, index) for index in asked if index > first)
    last = asked[-1] if asked else first
    kept = [*head, *turns[last : last + 1]] if asked else head
    yield from ((kept, index) for index in range(last + 1, len(turns)) if turns[index].role == "assistant")
