"""Rewrites conversations for chat templates that reject them: those that want one system turn, then user and assistant
in alternation, and those that want one call in a turn."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from fairlane.gateway.dialects.openai.requests import Turn, is_system, merge_turns

RESULT_ROLES = frozenset({"tool", "function"})
_PARAGRAPH = "\n\n"


def is_result(turn: Turn) -> bool:
    """Return whether the turn is the result of a tool call."""
    return turn.role in RESULT_ROLES


def late_system_as_user(turns: Sequence[Turn]) -> Sequence[Turn]:
    """Return the turns with system messages after others as parts of user turns; adjacent user turns are then merged,
    since templates without late system messages often require alternating roles."""
    first = list(itertools.takewhile(is_system, turns))
    later = turns[len(first) :]
    if not any(map(is_system, later)):
        return turns
    shown = [
        Turn(role="user", content=f"<system>\n{turn.content or ''}\n</system>") if is_system(turn) else turn
        for turn in later
    ]
    return merge_turns([*first, *shown], lambda group, turn: group[-1].role == turn.role == "user")


def system_as_one(turns: Sequence[Turn]) -> Sequence[Turn]:
    """Return the turns with adjacent system turns merged."""
    return merge_turns(turns, lambda group, turn: is_system(group[-1]) and is_system(turn), _PARAGRAPH)


def results_as_text(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with results of tools as user turns, adjacent results as one."""
    marked = [
        replace(turn, content=f"<tool_response>\n{turn.content or ''}\n</tool_response>") if is_result(turn) else turn
        for turn in turns
    ]
    merged = merge_turns(marked, lambda group, turn: is_result(group[-1]) and is_result(turn))
    return [Turn(role="user", content=turn.content) if is_result(turn) else turn for turn in merged]


def alternating(turns: Sequence[Turn], *, takes_system: bool) -> list[Turn]:
    """Return the turns with one system turn at most, at the beginning, and a user turn after it; then no two adjacent
    turns are of one role except calls, results follow a turn with calls, and calls have a result.

    What the user says next to a result becomes part of it. `takes_system`: otherwise the first user turn contains the
    system's text."""
    turns = system_as_one(late_system_as_user(turns))
    if turns and is_system(turns[0]) and not takes_system:
        turns = [Turn(role="user", content=turns[0].content), *turns[1:]]
    said = [turn for turn in _paired(turns) if turn.role != "assistant" or turn.content or turn.tool_calls]
    start = 1 if said and is_system(said[0]) else 0
    if not said[start:] or said[start].role != "user":
        said.insert(start, Turn(role="user", content=""))

    def belongs(group: Sequence[Turn], turn: Turn) -> bool:
        if is_result(group[0]):
            return turn.role == "user"
        return group[0].role == turn.role and not group[-1].tool_calls

    return merge_turns(said, belongs, _PARAGRAPH)


def one_call_each(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with each call in a turn of its own, followed by its results."""
    groups: list[list[Turn]] = []
    for turn in turns:
        if groups and is_result(turn):
            groups[-1].append(turn)
        else:
            groups.append([turn])
    split: list[Turn] = []
    for turn, *results in groups:
        if len(turn.tool_calls) < 2:
            split += [turn, *results]
            continue
        found = defaultdict[str | None, list[Turn]](list)
        for result in results:
            found[result.tool_call_id].append(result)
        bare = replace(turn, content=None, reasoning=None)
        for place, call in enumerate(turn.tool_calls):
            split.append(replace(bare if place else turn, tool_calls=(call,)))
            split += found.pop(call.id, [])
        split += itertools.chain.from_iterable(found.values())
    return split


def _paired(turns: Sequence[Turn]) -> Iterator[Turn]:
    """Yield the turns with results next to their calls, a result for calls without any, and other results as text."""
    groups: list[list[Turn]] = [[]]
    for turn in turns:
        if turn.tool_calls:
            groups.append([])
        groups[-1].append(turn)
    yield from _without_results(groups[0])
    for number, (turn, *rest) in enumerate(groups[1:], 2):
        ids = {call.id for call in turn.tool_calls if call.id}
        adjacent = len(list(itertools.takewhile(is_result, rest)))
        answers, others = list[Turn](), list[Turn]()
        for place, each in enumerate(rest):
            is_answer = is_result(each) and (place < adjacent or each.tool_call_id in ids)
            (answers if is_answer else others).append(each)
        yield turn
        yield from answers
        if others or number < len(groups):
            answered = {answer.tool_call_id for answer in answers}
            missing = [call.id for call in turn.tool_calls if call.id is None or call.id not in answered]
            for call_id in missing[: max(0, len(turn.tool_calls) - len(answers))]:
                yield Turn(role="tool", content="[no result]", tool_call_id=call_id)
        yield from _without_results(others)


def _without_results(turns: Sequence[Turn]) -> Sequence[Turn]:
    return results_as_text(turns) if any(map(is_result, turns)) else turns
