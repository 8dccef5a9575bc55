"""The body of `POST /v1/responses`, and its conversion to a chat request."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec.structs import replace
from pydantic import BeforeValidator, Field

from fairlane.gateway.dialects.grammar.structure import ANY_OBJECT, Structure
from fairlane.gateway.dialects.media_marks import MediaFound
from fairlane.gateway.dialects.openai.field_types import (
    Fields,
    Hint,
    Ignored,
    Lenient,
    NoneIfEmpty,
    NoneIfNoItems,
    Off,
    Text,
    lenient_in,
)
from fairlane.gateway.dialects.openai.neutral import CACHE_HINTS, Neutral, hint
from fairlane.gateway.dialects.openai.reading import Reading, checked
from fairlane.gateway.dialects.openai.rendering import EffortWord, Rendering, TemplateVariables, with_effort
from fairlane.gateway.dialects.openai.request_bodies import Biases, Count, SampledBody, Stops
from fairlane.gateway.dialects.openai.requests import ChatRequest, stated_fields
from fairlane.gateway.dialects.openai.response_conversation import NOTHING_STORED, Stored, conversation
from fairlane.gateway.dialects.openai.response_items import (
    AdditionalToolsItem,
    Close,
    Item,
    Items,
    Json,
    turns_of,
)
from fairlane.gateway.dialects.openai.response_tools import (
    AnyTool,
    CalledAs,
    ChosenTool,
    HostedTool,
    ResponseAllowedTools,
    ResponseToolChoice,
    ResponseTools,
    ToolNamespace,
    offered_tools_of,
)
from fairlane.gateway.dialects.openai.structures import JsonSchema, StructureFields, read_structure
from fairlane.gateway.dialects.openai.tools import Tool, ToolChoice, checked_choice, served_tools
from fairlane.gateway.errors import invalid

NEUTRAL_RESPONSE: Neutral = {
    **CACHE_HINTS,
    "access_programs": (),
    "background": (False,),
    "context_management": ([],),
    "image": (),
    "max_tool_calls": hint(),
    "moderation": (),
    "prompt": (),
}


MAX_INCLUDED = 64
LOGPROBS, REASONING = "message.output_text.logprobs", "reasoning.encrypted_content"


class TextFormat(Fields):
    """The format of the text: any text, any JSON object, or JSON that follows a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: Hint | None = None
    description: Text | None = None
    schema_: Annotated[JsonSchema | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextBody(Fields):
    """Options of the response's text."""

    format: Annotated[TextFormat | None, NoneIfEmpty] = None
    verbosity: Annotated[Literal["medium"] | None, lenient_in("text")] = None


class ReasoningBody(Fields):
    """Options of the model's reasoning. Only the effort can be set."""

    effort: Annotated[EffortWord | None, NoneIfEmpty] = None
    summary: Annotated[Literal["auto"] | None, lenient_in("reasoning")] = None
    generate_summary: Annotated[Literal["auto"] | None, lenient_in("reasoning")] = None
    context: Annotated[Literal["auto"] | None, lenient_in("reasoning")] = None
    mode: Annotated[Literal["standard"] | None, lenient_in("reasoning")] = None


class ResponseStreamOptions(Fields):
    """Options of a stream."""

    include_obfuscation: Annotated[Off | None, lenient_in("stream_options")] = None


def _id_of(conversation: object) -> object:
    return conversation["id"] if isinstance(conversation, dict) and conversation.keys() == {"id"} else conversation


ConversationId = Annotated[
    Hint, Field(min_length=1), BeforeValidator(_id_of, json_schema_input_type=str | dict[Literal["id"], str])
]


class InputTokensBody(StructureFields, SampledBody):
    """The body of `POST /v1/responses/input_tokens`: a response's, of which only the prompt counts."""

    input: Annotated[Items | None, NoneIfNoItems] = None
    instructions: Text | None = None
    previous_response_id: Annotated[Hint | None, NoneIfEmpty] = None
    conversation: Annotated[ConversationId | None, NoneIfEmpty] = None
    store: bool | None = None
    max_output_tokens: Count | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stop: Stops | None = None
    logit_bias: Biases | None = None
    cache_salt: Annotated[Hint, Field(min_length=1)] | None = None
    include: Annotated[list[Hint], Field(max_length=MAX_INCLUDED, fail_fast=True)] | None = None
    truncation: Annotated[Literal["auto", "disabled"] | None, NoneIfEmpty] = None
    tools: ResponseTools | None = None
    tool_choice: Annotated[ResponseToolChoice | None, NoneIfEmpty] = None
    parallel_tool_calls: bool | None = None
    text: TextBody | None = None
    reasoning: ReasoningBody | None = None
    chat_template_kwargs: TemplateVariables | None = None
    stream_options: ResponseStreamOptions | None = None
    metadata: Lenient[Annotated[dict[Annotated[Hint, Field(max_length=64)], Hint], Field(max_length=16)]] = None
    user: Lenient[Hint] = None
    safety_identifier: Lenient[Hint] = None
    prompt_cache_key: Lenient[Hint] = None
    client_metadata: Ignored = None


class ResponseBody(InputTokensBody):
    """The body of `POST /v1/responses`."""


class CreateMessage(ResponseBody):
    """A message of a WebSocket. It is always answered by events, whatever `stream` says."""

    type: Literal["response.create"]
    # False: read the prompt, so that the next message's begins in the cache, and respond with no output.
    generate: bool | None = None
    # Repeated in each event of the response.
    stream_id: Hint | None = None


class ResponseRequest(ChatRequest, frozen=True, kw_only=True):
    """A valid `POST /v1/responses`."""

    # The whole conversation, including stored items.
    items: tuple[Item, ...]
    # The names of tools in namespaces, by the model's names for them.
    called_as: Mapping[str, CalledAs] = {}
    echo: Mapping[str, Any]
    store: bool = True
    # The stored conversation to which the response is added, and the number of its items.
    conversation: str | None = None
    earlier_items: int = 0
    # Encrypts the reasoning for the tenant's clients, if it is to be included.
    closes: Close | None = None
    # Drop the oldest turns of a conversation that does not fit the context.
    truncates: bool = False

    @property
    def keeps_input(self) -> bool:
        return True


def parse_response(
    body: bytes,
    reading: Reading | None = None,
    *,
    stored: Stored = NOTHING_STORED,
    may_store: bool = True,
) -> ResponseRequest:
    """Parse a body. `stored`: what it refers to; `may_store`: false in batches. Raises ApiError naming the field."""
    asked = checked(ResponseBody, NEUTRAL_RESPONSE, body, reading)
    _check_input(asked)
    if asked.store and not may_store:
        raise invalid("store", "`store` must be false: a batch's responses are only written to its output file.")
    if asked.conversation is not None and not may_store:
        raise invalid("conversation", "A batch's responses are only written to its output file.")
    return _request(asked, stored, reading, store=may_store and asked.store is not False)


def parse_message(body: bytes, reading: Reading | None = None, *, stored: Stored = NOTHING_STORED) -> ResponseRequest:
    """Parse a WebSocket's message. Raises ApiError naming the field."""
    asked = checked(CreateMessage, NEUTRAL_RESPONSE, body, reading)
    _check_input(asked)
    request = replace(_request(asked, stored, reading, store=asked.store is not False), stream=True)
    return replace(request, max_tokens=0, max_tokens_param="generate") if asked.generate is False else request


def _check_input(asked: ResponseBody) -> None:
    if asked.input is None and asked.previous_response_id is None and asked.conversation is None:
        raise invalid("input", "`input` is required, unless the response continues what is stored.")


def parse_input_tokens(
    body: bytes, reading: Reading | None = None, *, stored: Stored = NOTHING_STORED
) -> ResponseRequest:
    """Parse a body whose prompt is only counted."""
    asked = checked(InputTokensBody, NEUTRAL_RESPONSE, body, reading)
    return _request(asked, stored, reading, store=False)


def _request(asked: InputTokensBody, stored: Stored, reading: Reading | None, *, store: bool) -> ResponseRequest:
    items = conversation(asked.input or [], asked.previous_response_id, stored, asked.conversation)
    found = MediaFound() if reading is None else reading.found
    turns = turns_of(items, asked.instructions, found, len(asked.input or ()))
    if not turns:
        raise invalid("input", "`input` contains nothing to respond to.")
    effort = None if asked.reasoning is None else asked.reasoning.effort
    included = set(asked.include or ())
    if reading is not None and included - {LOGPROBS, REASONING}:
        reading.ignore("include")
    added = [tool for item in items if isinstance(item, AdditionalToolsItem) for tool in item.tools]
    offered = _offered(asked, added, reading)
    tools = tuple(tool for tool, _ in offered)
    has_namespaces = any(isinstance(tool, ToolNamespace) for tool in asked.tools or ())
    has_logprobs = bool(asked.top_logprobs) or LOGPROBS in included
    return ResponseRequest(
        **stated_fields(asked),
        messages=turns,
        items=tuple(items),
        tools=tools,
        tool_choice=_choice(asked, tools),
        rendering=with_effort(Rendering(variables=asked.chat_template_kwargs or {}), effort, "reasoning.effort"),
        schema_param="tools" if has_namespaces or added else "tools.[{index}].{field}",
        called_as={tool.name: called_as for tool, called_as in offered if called_as is not None},
        max_tokens=asked.max_output_tokens,
        max_tokens_param="max_output_tokens",
        logprobs=(asked.top_logprobs or 0) if has_logprobs else None,
        structure=_structure(asked),
        store=store,
        conversation=asked.conversation,
        earlier_items=0 if stored.conversation is None else len(stored.conversation.items),
        closes=stored.closes if REASONING in included else None,
        truncates=asked.truncation == "auto",
        echo=_echo(asked, store=store),
    )


def _offered(
    asked: InputTokensBody, added: Sequence[AnyTool], reading: Reading | None
) -> list[tuple[Tool, CalledAs | None]]:
    """Return the body's tools, then those added by its input. Codex repeats them, so the last of one name counts."""
    may_call = asked.tool_choice != "none"
    offered = list(offered_tools_of(served_tools(asked.tools or (), "tools.[{index}]", reading, may_call=may_call)))
    if added:
        names = {tool.name for tool, _ in offered}
        more = {
            tool.name: (tool, called_as)
            for tool, called_as in offered_tools_of(served_tools(added, "input", reading, may_call=may_call))
        }
        offered += [each for name, each in more.items() if name not in names]
    return offered


def _choice(asked: InputTokensBody, tools: Sequence[Tool]) -> ToolChoice:
    match asked.tool_choice:
        case ChosenTool(name=name):
            choice = ToolChoice("required", (name,))
        case ResponseAllowedTools(mode=mode, tools=allowed):
            choice = ToolChoice(mode, tuple(tool.name for tool in allowed))
        case mode:
            choice = ToolChoice(mode or "auto")
    return checked_choice(tools, choice, "name")


def _structure(body: InputTokensBody) -> Structure | None:
    other = read_structure(body)
    asked = None if body.text is None else body.text.format
    if asked is None or (other is not None and asked.type == "text"):
        return other
    if other is not None:
        raise invalid(other.param, f"`text.format` and `{other.param}` are both given.")
    if asked.type == "json_schema":
        for field, value in (("name", asked.name), ("schema", asked.schema_)):
            if value is None:
                raise invalid(f"text.format.{field}", f"`text.format.{field}` is required.")
    if asked.schema_ is not None and asked.type == "text":
        raise invalid("text.format.schema", "`schema` needs a JSON type.")
    if asked.schema_ is not None:
        return Structure("json_schema", asked.schema_, "text.format.schema")
    return Structure("json_schema", ANY_OBJECT, "text.format") if asked.type == "json_object" else None


def _echo(asked: InputTokensBody, *, store: bool) -> Json:
    choice, reasoning = asked.tool_choice, asked.reasoning or ReasoningBody()
    return {
        "background": False,
        "conversation": None if asked.conversation is None else {"id": asked.conversation},
        "frequency_penalty": asked.frequency_penalty or 0.0,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": None,
        "metadata": asked.metadata or {},
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "presence_penalty": asked.presence_penalty or 0.0,
        "previous_response_id": asked.previous_response_id,
        "prompt_cache_key": asked.prompt_cache_key,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "safety_identifier": asked.safety_identifier,
        "store": store,
        "text": {"format": _echoed_format(asked.text), "verbosity": "medium"},
        "tool_choice": choice.model_dump() if isinstance(choice, Fields) else choice or "auto",
        "tools": [tool.as_json() for tool in asked.tools or () if not isinstance(tool, HostedTool)],
        "top_logprobs": asked.top_logprobs or 0,
        "truncation": asked.truncation or "disabled",
        "user": asked.user,
        **asked.model_dump(include={"temperature", "top_p"}, exclude_none=True),
    }


def _echoed_format(text: TextBody | None) -> Json:
    asked = None if text is None else text.format
    if asked is None or asked.type != "json_schema":
        return {"type": "text" if asked is None else asked.type}
    schema = json.loads(asked.schema_ or ANY_OBJECT)
    document = {"type": asked.type, "name": asked.name, "description": asked.description}
    return {**document, "schema": schema, "strict": bool(asked.strict)}
