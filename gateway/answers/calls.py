"""Tool calls in the answers of chats: as `tool_calls` or, for requests with `functions`, as one `function_call`."""

from collections.abc import Sequence

from fairlane.gateway.answers.builder import Json
from fairlane.gateway.answers.message import ParsedCall
from fairlane.gateway.dialects.tools.deltas import ToolCallDelta


def calls_of_message(calls: Sequence[ParsedCall], *, as_function: bool) -> Json:
    """Return the field of a message with these calls. `as_function`: the older form, which has room for the first."""
    functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
    if as_function:
        return {"function_call": functions[0]}
    named = zip(calls, functions, strict=True)
    return {"tool_calls": [{"id": call.id, "type": "function", "function": function} for call, function in named]}


def calls_of_delta(calls: Sequence[ToolCallDelta], *, as_function: bool) -> Json:
    """Return the field of a stream's chunk, if any, with these parts of calls."""
    if as_function:
        return {"function_call": _function(calls[0])} if calls[0].index == 0 else {}
    return {"tool_calls": [_call(call) for call in calls]}


def _call(call: ToolCallDelta) -> Json:
    if call.name is None:
        return {"index": call.index, "function": _function(call)}
    return {"index": call.index, "id": call.id, "type": "function", "function": _function(call)}


def _function(call: ToolCallDelta) -> Json:
    named = {} if call.name is None else {"name": call.name}
    return {**named, "arguments": call.arguments}
