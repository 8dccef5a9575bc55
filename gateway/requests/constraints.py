"""What each choice has to be: a request's form and tools, checked, as one grammar for the worker."""

import asyncio
from collections.abc import Sequence

import msgspec

from fairlane.gateway.errors import ApiError, invalid
from fairlane.gateway.grammar.checker import GrammarChecker
from fairlane.gateway.grammar.structure import json_structure
from fairlane.gateway.openai.requests import ChatRequest, GenerationRequest
from fairlane.gateway.openai.tools import Tool
from fairlane.gateway.text.tokenizer import TextModel
from fairlane.scheduler.protocol.grammar_limits import MOST_COMPILED_BYTES, MOST_GRAMMAR_CHARS

MOST_CHECKING_S = 6.0
"""How long the tools of one request may be checked."""


async def grammar_of(
    request: GenerationRequest, text: TextModel, prompt: Sequence[int], checker: GrammarChecker, tenant_id: str
) -> str:
    """The grammar of every choice; empty: anything may be said. `prompt`: what the answer goes on from.

    A model that reasons may do so before. Raises ApiError naming the field that cannot be served.
    """
    if not text.card.takes_grammars:
        _refuse_forms(request)
        return ""
    answer = "" if request.structure is None else await checker.grammar(request.structure, tenant_id)
    if not isinstance(request, ChatRequest):
        return answer
    grammar = await _with_tools(request, answer, text, text.tail(prompt), checker, tenant_id)
    if len(grammar) > MOST_GRAMMAR_CHARS:
        raise invalid("tools", f"`tools` and the form of the answer come to more than {MOST_GRAMMAR_CHARS} characters.")
    return grammar


def _refuse_forms(request: GenerationRequest) -> None:
    """Of a model whose answers cannot be kept to one."""
    said = "answers of this model cannot be kept to a form."
    if request.structure is not None:
        raise invalid(request.structure.param, f"`{request.structure.param}` cannot be served: {said}")
    if isinstance(request, ChatRequest) and request.tool_choice.mode == "required":
        raise invalid("tool_choice", f"`tool_choice` cannot be served: {said}")
    strict = next((tool for tool in request.offered_tools if tool.strict), None)
    if strict is not None:
        raise invalid("tools", f"`strict` cannot be served: {said}")


async def _with_tools(
    request: ChatRequest, answer: str, text: TextModel, tail: str, checker: GrammarChecker, tenant_id: str
) -> str:
    tools, model = request.offered_tools, text.output_format
    if tools and request.tool_choice.mode == "required":
        if not model.can_force:
            raise invalid("tool_choice", "This model cannot be made to call: how it writes calls is not known.")
        await _check(request, tools, checker, tenant_id)
        parallel = request.parallel_tool_calls and len(tools) > 1
        return model.forced(tools, parallel=parallel, prompt_tail=tail)
    await _check(request, tools if answer else [tool for tool in tools if tool.strict], checker, tenant_id)
    if answer:
        frame = model.answering(tools, parallel=request.parallel_tool_calls, prompt_tail=tail)
        return answer if frame is None else _joined(frame, answer)
    return model.lenient(tools, parallel=request.parallel_tool_calls, prompt_tail=tail) or ""


async def _check(request: ChatRequest, tools: Sequence[Tool], checker: GrammarChecker, tenant_id: str) -> None:
    clock = asyncio.get_running_loop().time
    end_s = clock() + MOST_CHECKING_S
    held = 0 if request.structure is None else checker.compiled_bytes(request.structure)
    for tool in tools:
        param = request.parameters_param.format(index=request.tools.index(tool))
        if clock() > end_s:  # others wait for the same few processes; what was checked is kept for the next try
            message = f"Checking `{param}` and what stands before it takes more than {MOST_CHECKING_S:g} s."
            raise ApiError(message, "overloaded", param, retry_after_s=1.0)
        structure = json_structure(tool.parameters, param)
        await checker.grammar(structure, tenant_id)
        held += checker.compiled_bytes(structure)
        if held > MOST_COMPILED_BYTES:
            most = f"{MOST_COMPILED_BYTES >> 20} MiB of memory"
            raise invalid(
                param, f"`{param}` cannot be served: compiled with what stands before it, it takes over {most}."
            )


def _joined(frame: str, answer: str) -> str:
    """A grammar in Lark that names another one `@answer`, with that one."""
    named = {"lark_grammar": answer}
    if answer.startswith("{"):  # the others begin with a rule
        named = msgspec.json.decode(answer)["grammars"][0]
    return msgspec.json.encode({"grammars": [{"lark_grammar": frame}, {**named, "name": "answer"}]}).decode()
