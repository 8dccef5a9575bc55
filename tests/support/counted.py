"""Counts of work in one thread: the bytecodes that a call runs, and its calls of one function."""

import sys
from collections.abc import Callable
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

TOOL = 4  # of sys.monitoring's numbers, one that no known tool has


def bytecodes(call: Callable[[], object]) -> int:
    """Return how many bytecodes a call runs, in loops and comprehensions too."""
    count = 0
    if sys.version_info >= (3, 12):  # where a trace misses the first run of each function

        def note(code: CodeType, offset: int) -> None:
            nonlocal count
            count += get_ident() == thread

        tool, thread = sys.monitoring, get_ident()
        tool.use_tool_id(TOOL, "counted")
        tool.register_callback(TOOL, tool.events.INSTRUCTION, note)
        tool.set_events(TOOL, tool.events.INSTRUCTION)
        try:
            call()
        finally:
            tool.set_events(TOOL, tool.events.NO_EVENTS)
            tool.free_tool_id(TOOL)
        return count

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def calls_of(function: Callable[..., object], call: Callable[[], object]) -> int:
    """Return how often a call calls a function, written in Python or built in."""
    count, code = 0, getattr(function, "__code__", None)

    def note(frame: FrameType, event: str, called: object) -> None:
        nonlocal count
        count += (event == "c_call" and called is function) or (event == "call" and frame.f_code is code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count
