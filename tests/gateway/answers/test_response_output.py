"""Output items: the same however the text is cut, their events in the order that the SDK's types prescribe."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseOutputItem, ResponseStreamEvent
from pydantic import TypeAdapter

from fairlane.gateway.answers.response_output import OutputItems
from fairlane.gateway.dialects.openai.item_ids import new_id
from fairlane.gateway.dialects.openai.response_items import Status
from fairlane.gateway.dialects.openai.response_tools import CalledAs
from fairlane.gateway.dialects.tools.deltas import OutputDelta, ToolCallDelta

EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
ITEM: TypeAdapter[ResponseOutputItem] = TypeAdapter(ResponseOutputItem)
SAID, THOUGHT = OutputDelta("So."), OutputDelta(reasoning="Hm.")


def begun(index: int, name: str = "weather", arguments: str = "") -> ToolCallDelta:
    return ToolCallDelta(index, arguments, id=f"call_{index}", name=name, is_text=name == "patch")


def called(*calls: ToolCallDelta, content: str = "") -> OutputDelta:
    return OutputDelta(content, calls=calls)


def made(
    deltas: Iterable[OutputDelta], status: Status = "completed"
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Items and events."""
    output = OutputItems({"git__log": CalledAs("log", "git")}, new_id)
    events = [event for delta in deltas for event in output.feed([delta], [])]
    return output.items, [*events, *output.close(status)]


def shapes(items: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Kind and text of each item."""
    return [(item["type"], _text(item)) for item in items]


def _text(item: dict[str, Any]) -> str:
    if "content" in item:
        return "".join(part["text"] for part in item["content"])
    return str(item["arguments"] if "arguments" in item else item["input"])


def test_items_follow_each_other() -> None:
    deltas = [THOUGHT, OutputDelta("So "), OutputDelta("it is."), called(begun(0)), called(ToolCallDelta(0, "{}"))]

    items, _ = made([*deltas, called(begun(1, arguments="{}"))])

    assert shapes(items) == [
        ("reasoning", "Hm."),
        ("message", "So it is."),
        ("function_call", "{}"),
        ("function_call", "{}"),
    ]


def test_what_follows_the_rest_of_a_call_in_one_go_is_an_item_of_its_own() -> None:
    deltas = [called(begun(0, arguments="{")), OutputDelta("Done.", calls=(ToolCallDelta(0, "}"), begun(1)))]

    items, _ = made([*deltas, called(ToolCallDelta(1, "{}"))])

    assert shapes(items) == [("function_call", "{}"), ("message", "Done."), ("function_call", "{}")]


@pytest.mark.parametrize(
    ("deltas", "found"),
    [
        ([], [("message", "")]),
        ([OutputDelta("\n")], [("message", "\n")]),
        ([OutputDelta(" "), SAID], [("message", " So.")]),
        ([THOUGHT, OutputDelta("\n\n"), called(begun(0))], [("reasoning", "Hm."), ("function_call", "")]),
        ([called(begun(0)), OutputDelta("\n"), called(begun(1))], [("function_call", ""), ("function_call", "")]),
        ([THOUGHT, OutputDelta("\n")], [("reasoning", "Hm.")]),
    ],
)
def test_blanks_alone_are_a_message_only_where_nothing_else_is_said(
    deltas: list[OutputDelta], found: list[tuple[str, str]]
) -> None:
    assert shapes(made(deltas)[0]) == found


def test_a_custom_tools_input_arrives_in_pieces() -> None:
    items, events = made([called(begun(0, "patch")), *(called(ToolCallDelta(0, letter)) for letter in "ab")])

    assert shapes(items) == [("custom_tool_call", "ab")]
    assert [event["type"] for event in events] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
    ]


def test_only_the_last_item_of_what_was_cut_is_incomplete() -> None:
    items, _ = made([THOUGHT, SAID], "incomplete")

    assert [item["status"] for item in items] == ["completed", "incomplete"]


_said = st.sampled_from(["", " ", "\n", "So.", "And."])
_calls = st.lists(st.tuples(st.sampled_from(["weather", "patch", "git__log"]), st.text(max_size=3)), max_size=2)
_steps = st.lists(st.tuples(_said, st.sampled_from(["", "", "Hm."]), _calls, st.text(max_size=3)), max_size=12)


def heard(steps: Iterable[tuple[str, str, list[tuple[str, str]], str]]) -> Iterator[OutputDelta]:
    """What each step says, its calls numbered as a reader does it, and what the last of these then goes on with."""
    number = 0
    for content, reasoning, calls, more in steps:
        numbered = [begun(index, *call) for index, call in enumerate(calls, number)]
        number += len(calls)
        yield OutputDelta(content, reasoning, tuple(numbered))
        if calls and more:
            yield called(ToolCallDelta(number - 1, more))


@given(_steps, st.sampled_from(["completed", "incomplete"]))
def test_events_come_to_the_items(steps: list[Any], status: Status) -> None:
    items, events = made(heard(steps), status)

    told: dict[str, str] = {}
    open_items: list[int] = []
    for number, event in enumerate(events):
        EVENT.validate_python({**event, "sequence_number": number}, strict=True)
        match event["type"]:
            case "response.output_item.added":
                assert not open_items
                open_items.append(event["output_index"])
            case "response.output_item.done":
                assert open_items.pop() == event["output_index"]
                assert event["item"] == items[event["output_index"]]
            case kind:
                assert open_items == [event["output_index"]]
                if kind.endswith(".delta"):
                    told[event["item_id"]] = told.get(event["item_id"], "") + event["delta"]
    assert not open_items
    for item in items:
        ITEM.validate_python(item, strict=True)
        assert told.get(item["id"], "") == _text(item)


def test_log_probabilities_stay_with_the_message_that_they_are_of() -> None:
    output = OutputItems({}, new_id)
    names = iter("abcdefgh")
    steps = [[THOUGHT], [], [SAID], [OutputDelta("!")], [], [called(begun(0))]]
    for deltas in steps:
        list(output.feed(deltas, [{"token": next(names)}]))
    list(output.close("completed"))

    (message,) = [item for item in output.items if item["type"] == "message"]
    assert [each["token"] for each in message["content"][0]["logprobs"]] == ["b", "c", "d"]


def test_a_call_of_a_namespaces_tool_names_both() -> None:
    (item,), _ = made([called(begun(0, "git__log", "{}"))])

    assert (item["name"], item["namespace"]) == ("log", "git")
