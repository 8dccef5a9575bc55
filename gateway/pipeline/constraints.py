"""Output constraints: a request's output format and tools, checked and combined into one grammar for the worker."""

import asyncio
import json
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from fairlane.gateway.dialects.grammar.checker import GrammarChecker
from fairlane.gateway.dialects.grammar.structure import CheckedGrammar, Structure
from fairlane.gateway.dialects.openai.requests import ChatRequest, GenerationRequest
from fairlane.gateway.dialects.openai.tools import Tool
from fairlane.gateway.errors import ApiError, invalid
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.scheduler.protocol.grammar_limits import FRAME_BYTES_PER_CHAR, MAX_COMPILED_BYTES, MAX_GRAMMAR_CHARS

# Time to check all tools of one request.
MOST_CHECKING_S = 6.0


async def grammar_of(
    request: GenerationRequest, text: TextModel, prompt: Sequence[int], checker: GrammarChecker, tenant_id: str
) -> CheckedGrammar:
    """Return the grammar of every choice; without text if output is unconstrained. The output continues `prompt`.

    A reasoning model may reason before it. Raises ApiError naming the field that cannot be served."""
    if not text.card.takes_grammars:
        _refuse_forms(request)
        return CheckedGrammar()
    form = request.structure
    answer = CheckedGrammar() if form is None else await checker.check(form, tenant_id)
    if not isinstance(request, ChatRequest):
        return answer
    grammar = await _with_tools(request, answer, text, text.tail(prompt, request.continued), checker, tenant_id)
    if len(grammar.text) > MAX_GRAMMAR_CHARS:
        raise invalid(
            request.tools_param,
            f"`{request.tools_param}` and the output format take more than {MAX_GRAMMAR_CHARS} characters.",
        )
    return grammar


def _refuse_forms(request: GenerationRequest) -> None:
    said = "the output of this model cannot be constrained."
    if request.structure is not None:
        raise invalid(request.structure.param, f"`{request.structure.param}` cannot be served: {said}")
    if isinstance(request, ChatRequest) and request.tool_choice.mode == "required":
        raise invalid(request.choice_param, f"`{request.choice_param}` cannot be served: {said}")
    for tool in request.offered_tools:
        if tool.strict and not tool.takes_text:
            raise invalid("tools", f"`strict` cannot be served: {said}")
        if tool.pattern and isinstance(request, ChatRequest):
            param = request.schema_param_of(tool)
            raise invalid(param, f"`{param}` cannot be served: {said}")


async def _with_tools(
    request: ChatRequest, answer: CheckedGrammar, text: TextModel, tail: str, checker: GrammarChecker, tenant_id: str
) -> CheckedGrammar:
    tools, model = request.offered_tools, text.output_format.grammar
    if tools and request.tool_choice.mode == "required":
        if not model.can_force:
            raise invalid(request.choice_param, "This model cannot be made to call a tool: its call format is unknown.")
        served, held = await _check(request, tools, 0, checker, tenant_id)
        parallel = request.parallel_tool_calls and len(tools) > 1
        return _framed(model.forced(served, parallel=parallel, prompt_tail=tail), held)
    served, held = await _check(request, tools, answer.compiled_bytes, checker, tenant_id, only_strict=not answer.text)
    if answer.text:
        frame = model.answering(served, parallel=request.parallel_tool_calls, prompt_tail=tail)
        return answer if frame is None else _framed(_joined(frame, answer.text), held)
    parallel, closes = request.parallel_tool_calls, request.close_json
    return _framed(model.lenient(served, parallel=parallel, closes=closes, prompt_tail=tail) or "", held)


def _framed(grammar: str, held_bytes: int) -> CheckedGrammar:
    return CheckedGrammar(grammar, held_bytes + FRAME_BYTES_PER_CHAR * len(grammar))


async def _check(
    request: ChatRequest,
    tools: Sequence[Tool],
    held_bytes: int,
    checker: GrammarChecker,
    tenant_id: str,
    *,
    only_strict: bool = False,
) -> tuple[list[Tool], int]:
    """Return the tools with their schemas as they are enforced, and the memory of all grammars."""
    clock = asyncio.get_running_loop().time
    end_s, served = clock() + MOST_CHECKING_S, []
    for tool in tools:
        if only_strict and not tool.strict:
            served.append(tool)
            continue
        param = request.schema_param_of(tool)
        if clock() > end_s:  # others wait for the same few processes; results are cached for a retry
            message = f"Checking the tools up to `{param}` takes more than {MOST_CHECKING_S:g} s."
            raise ApiError(message, "overloaded", param, retry_after_s=1.0)
        schema_text = json.dumps(tool.schema, ensure_ascii=False)
        schema = Structure("json_schema", schema_text, param, names_paths=not tool.takes_text)
        checked = await checker.check(schema, tenant_id)
        served.append(replace(tool, parameters=checked.schema))
        held_bytes += checked.compiled_bytes
        if held_bytes > MAX_COMPILED_BYTES:
            most = f"{MAX_COMPILED_BYTES >> 20} MiB of memory"
            raise invalid(param, f"`{param}` cannot be served: compiled with all before it, it takes over {most}.")
    return served, held_bytes


def _joined(frame: str, answer: str) -> str:
    named = {"lark_grammar": answer}
    if answer.startswith("{"):  # JSON: it combines grammars already
        named = msgspec.json.decode(answer)["grammars"][0]
    return msgspec.json.encode({"grammars": [{"lark_grammar": frame}, {**named, "name": "answer"}]}).decode()
