"""Tool calls in the answers of chats: as `tool_calls` or, for requests with `functions`, as one `function_call`."""

from collections.abc import Sequence

from fairlane.gateway.answers.builder import Json
from fairlane.gateway.answers.message import ParsedCall
from fairlane.gateway.dialects.tools.deltas import ToolCallDelta


def calls_of_message(calls: Sequence[ParsedCall], *, as_function: bool) -> Json:
    """Return the field of a message with these calls. `as_function`: the older form, which has room for the first."""
    if as_function:
        return {"function_call": _called(calls[0])}
    return {"tool_calls": [{"id": call.id, "type": _kind(call), _kind(call): _called(call)} for call in calls]}


def calls_of_delta(calls: Sequence[ToolCallDelta], *, as_function: bool) -> Json:
    """Return the field of a stream's chunk, if any, with these parts of calls."""
    parts = [call for call in calls if call.name is not None or call.arguments]
    if as_function:
        return {"function_call": _called(parts[0])} if parts and parts[0].index == 0 else {}
    return {"tool_calls": [_part(call) for call in parts]} if parts else {}


def _part(call: ToolCallDelta) -> Json:
    begun = {} if call.name is None else {"id": call.id, "type": _kind(call)}
    return {"index": call.index, **begun, _kind(call): _called(call)}


def _kind(call: ParsedCall | ToolCallDelta) -> str:
    return "custom" if call.is_text else "function"


def _called(call: ParsedCall | ToolCallDelta) -> Json:
    named = {} if call.name is None else {"name": call.name}
    return {**named, "input" if call.is_text else "arguments": call.arguments}
