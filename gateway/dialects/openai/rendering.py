"""How a conversation becomes a prompt, apart from its messages and tools: the reasoning effort, and vLLM's fields for
chat templates."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec.structs import replace
from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from fairlane.common.redacted import Redacted
from fairlane.gateway.dialects.openai.field_types import Fields, json_text, lenient_in, with_lists

MAX_VARIABLES = 32
# Characters of one variable as JSON.
MAX_VARIABLE_CHARS = 4096
MAX_DOCUMENTS = 128
EffortWord = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
# The field that sets a template's variables.
VARIABLES = "chat_template_kwargs"


def _variables(given: dict[str, Any]) -> dict[str, Any]:
    for value in given.values():
        if len(json_text(value)) > MAX_VARIABLE_CHARS:
            raise PydanticCustomError("variable", f"must have at most {MAX_VARIABLE_CHARS} characters in each value")
    return {name: with_lists(value) for name, value in given.items() if value is not None}


def _documents(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    json_text(given)
    return [{name: with_lists(value) for name, value in document.items()} for document in given]


TemplateVariables = Annotated[dict[str, Any], Field(max_length=MAX_VARIABLES), AfterValidator(_variables)]
Documents = Annotated[list[dict[str, Any]], Field(max_length=MAX_DOCUMENTS, fail_fast=True), AfterValidator(_documents)]


class ThinkingOptions(Fields, extra="ignore"):
    """Whether the model reasons, as Kimi's, GLM's and DeepSeek's APIs have it."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Annotated[None, lenient_in("thinking"), WithJsonSchema({})] = None


class ReasoningOptions(Fields, extra="ignore"):
    """How much the model reasons, and whether that is shown, as OpenRouter has it."""

    effort: EffortWord | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    max_tokens: Annotated[None, lenient_in("reasoning"), WithJsonSchema({})] = None


class Rendering(Redacted, frozen=True, kw_only=True):
    """How one conversation becomes a prompt."""

    effort: EffortWord | None = None
    # The field that stated it.
    effort_param: str = "reasoning_effort"
    # Whether the model is to reason; None leaves it to the template.
    reasons: bool | None = None
    reasons_param: str = "reasoning_effort"
    # Of the template, set by the caller; they take precedence over the effort.
    variables: Mapping[str, Any] = {}
    documents: tuple[Mapping[str, Any], ...] = ()
    # Whether the prompt ends where the model's turn begins, rather than after the last message.
    begins_turn: bool = True
    # The prompt ends within the last message, which the model continues.
    continues: bool = False
    # The tokens that the tokenizer adds around a plain text are added to the prompt too.
    is_marked: bool = False


USUAL_RENDERING = Rendering()


def with_switch(asked: Rendering, reasons: bool | None, param: str) -> Rendering:
    """Return a rendering with this decision whether the model reasons, if any."""
    return asked if reasons is None else replace(asked, reasons=reasons, reasons_param=param)


def with_effort(asked: Rendering, effort: EffortWord | None, param: str) -> Rendering:
    """Return a rendering with this effort, if any, which also decides whether the model reasons."""
    if effort is None:
        return asked
    return replace(asked, effort=effort, effort_param=param, reasons=effort != "none", reasons_param=param)
