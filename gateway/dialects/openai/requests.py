"""Requests, parsed from bodies into values that can only be valid, so that inner layers need not validate input
again."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from msgspec.structs import replace
from pydantic import BaseModel

from fairlane.common.redacted import Redacted
from fairlane.gateway.dialects.grammar.structure import Structure
from fairlane.gateway.dialects.media_marks import NO_MEDIA, Media
from fairlane.gateway.dialects.openai.engine_fields import USUAL_DISPLAY, Display, read_display
from fairlane.gateway.dialects.openai.neutral import NEUTRAL_COMPLETION
from fairlane.gateway.dialects.openai.reading import Reading, checked
from fairlane.gateway.dialects.openai.rendering import USUAL_RENDERING, Rendering
from fairlane.gateway.dialects.openai.request_bodies import (
    MAX_SEQUENCES,
    CompletionBody,
    GenerationBody,
)
from fairlane.gateway.dialects.openai.structures import read_structure
from fairlane.gateway.dialects.openai.tools import Tool, ToolCall, ToolChoice
from fairlane.gateway.errors import invalid
from fairlane.scheduler.protocol.messages import Sampling

_SEED_MASK = 2**63 - 1
Prompt = str | tuple[int, ...]
_AS_USUAL = Sampling()
# Fields that bodies and requests share. A body's null is the request's default.
_SAME_FIELDS = frozenset({"model", "n", "stream", "service_tier", "deadline_ms", "cache_salt", "parallel_tool_calls"})
_SAME_FIELDS |= {"seed", "stop", "min_tokens", "ignore_eos", "truncate_prompt_tokens", "close_json"}
# Parameters that shape the distribution, from which a model may have its own defaults.
_DRAW_FIELDS = frozenset(Sampling.__struct_fields__)
_DRAW_FIELDS -= {"seed", "min_tokens", "stop_token_ids", "logprobs", "prompt_logprobs", "bad_words"}
# Fields of which zero asks for something.
_COUNTS_FROM_ZERO = frozenset({"logprobs", "prompt_logprobs"})


class GenerationRequest(Redacted, frozen=True, kw_only=True, gc=False):
    """The common part of all requests for generation."""

    model: str
    n: int = 1
    # Output tokens per choice; None: as many as context and limits allow.
    max_tokens: int | None = None
    max_tokens_param: str = "max_tokens"
    # The caller's output limit goes beyond the context, so that the output ends where the context does.
    is_cut: bool = False
    # Fields that have no effect on this request, which the answer names.
    ignored: tuple[str, ...] = ()
    # Set for a summary of the prompt: its maximum tokens; it also gets at most about half of the prompt's tokens.
    longest_summary: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    # Report the usage so far in each chunk of a stream.
    continuous_usage: bool = False
    service_tier: str | None = None
    # From arrival to the last token.
    deadline_ms: float | None = None
    seed: int | None = None
    # None: no log-probabilities; k: those of the chosen token and of the k most likely.
    logprobs: int | None = None
    # The same of the prompt, in vLLM's form.
    prompt_logprobs: int | None = None
    # Most likely tokens needed for each prompt token, in any form; None: no log-probabilities.
    scored: int | None = None
    display: Display = USUAL_DISPLAY
    # Fields of `Sampling` that the caller stated; once the model is known, also the model's defaults.
    draw: Mapping[str, Any] = {}
    # Tokens that end a choice, in addition to the model's own.
    stop_token_ids: tuple[int, ...] = ()
    # Texts that the output does not contain.
    bad_words: tuple[str, ...] = ()
    structure: Structure | None = None
    # Close a structured output or a call before the output limit.
    close_json: bool = False
    # Tokens of each prompt that are kept, from its end: all if None, as many as the model takes if -1.
    truncate_prompt_tokens: int | None = None
    # Prompts are only found in the cache by requests with the same salt.
    cache_salt: str = ""
    # Images and sounds, for which its texts have marks.
    media: Media = NO_MEDIA

    @property
    def offered_tools(self) -> tuple[Tool, ...]:
        return ()

    @property
    def continued(self) -> str:
        """The text at the end of the prompt that the output continues."""
        return ""

    @property
    def keeps_input(self) -> bool:
        """Whether it holds the input as it was sent, media too, until it ends."""
        return False

    def fitted(self, longest: int) -> Self:
        """Return the request with what `truncate_prompt_tokens: -1` keeps: as much as leaves room for the output.
        `longest`: the tokens that a worker holds of one choice."""
        if self.truncate_prompt_tokens != -1:
            return self
        output = max(self.max_tokens or 1, self.n)
        return replace(self, truncate_prompt_tokens=max(1, longest - (output if output < longest else self.n)))

    @property
    def n_param(self) -> str:
        """The field that states `n`."""
        return "n"

    @property
    def drawn_logprobs(self) -> int | None:
        """Return what `logprobs` the workers report."""
        return self.logprobs

    def asking(self, field: str) -> str | None:
        """Return the body's field that needs an engine which takes `field`; None if it may ignore it."""
        return field if self._asks_for(field) else None

    def _asks_for(self, field: str) -> bool:
        said, usual = getattr(self, field, None), getattr(_AS_USUAL, field, None)
        return self.draw.get(field, usual) != usual or bool(said) or (field in _COUNTS_FROM_ZERO and said is not None)

    def sampling(self, seed: int, eos: tuple[int, ...]) -> Sampling:
        return Sampling(
            **self.draw,
            seed=seed & _SEED_MASK,
            min_tokens=self.min_tokens,
            stop_token_ids=self.stop_token_ids if self.ignore_eos else (*eos, *self.stop_token_ids),
            logprobs=self.drawn_logprobs,
            prompt_logprobs=self.scored,
        )


class Turn(Redacted, frozen=True, kw_only=True):
    """One message of a conversation, as chat templates read it."""

    role: str
    # None if the model made calls without text.
    content: str | None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None


def rewritten(turns: Iterable[Turn], rewrite: Callable[[str], str]) -> tuple[Turn, ...]:
    """Return turns with their texts rewritten."""
    return tuple([replace(turn, content=rewrite(turn.content)) if turn.content else turn for turn in turns])


def is_system(turn: Turn) -> bool:
    """Return whether the turn instructs the model."""
    return turn.role in ("system", "developer")


def merge_turns(
    turns: Iterable[Turn], belongs: Callable[[Sequence[Turn], Turn], bool], separator: str = "\n"
) -> list[Turn]:
    """Merge adjacent turns into one. `belongs`: a turn belongs to the group before it."""
    groups: list[list[Turn]] = []
    for turn in turns:
        if groups and belongs(groups[-1], turn):
            groups[-1].append(turn)
        else:
            groups.append([turn])
    return [group[0] if len(group) == 1 else _as_one(group, separator) for group in groups]


def _as_one(group: Sequence[Turn], separator: str) -> Turn:
    content = separator.join([turn.content for turn in group if turn.content])
    calls = tuple([call for turn in group for call in turn.tool_calls])
    is_without_text = bool(calls) or all(turn.content is None for turn in group)
    return replace(
        group[0],
        content=(content or None) if is_without_text else content,
        tool_calls=calls,
        reasoning="\n".join([turn.reasoning for turn in group if turn.reasoning]) or None,
    )


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """A valid `POST /v1/chat/completions`."""

    messages: tuple[Turn, ...]
    # All tools of the request; `offered_tools` are those that the model sees.
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    rendering: Rendering = USUAL_RENDERING
    tools_param: str = "tools"
    choice_param: str = "tool_choice"
    # Of a tool's schema: `kind` is `function` or `custom`, `field` is `parameters` or `format`.
    schema_param: str = "tools.[{index}].{kind}.{field}"
    includes_reasoning: bool = True

    @property
    def offered_tools(self) -> tuple[Tool, ...]:
        return self.tool_choice.offered(self.tools) if self.tools else ()

    def schema_param_of(self, tool: Tool) -> str:
        """Return the field that states the schema of a tool's arguments."""
        field = "format" if tool.takes_text else "parameters"
        return self.schema_param.format(index=self.tools.index(tool), kind=tool.kind, field=field)

    @property
    def continued(self) -> str:
        return (self.messages[-1].content or "") if self.rendering.continues else ""

    @property
    def calls_function(self) -> bool:
        """Whether a call is returned in OpenAI's older form, `function_call`."""
        return self.choice_param == "function_call"


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """A valid `POST /v1/completions`; the choices of prompt i have the indices i·n to i·n + n - 1."""

    prompts: tuple[Prompt, ...]
    # The tokens that the tokenizer adds around a text are part of the prompt.
    is_marked: bool = True
    echo: bool = False
    # Text that follows the output; empty: none.
    suffix: str = ""
    # Choices in the answer, those with the highest log-probability: fewer than `n` if `best_of` is more.
    returned: int = 1

    @property
    def n_param(self) -> str:
        return "best_of" if self.returned < self.n else "n"

    @property
    def drawn_logprobs(self) -> int | None:
        return 0 if self.logprobs is None and self.returned < self.n else self.logprobs

    def asking(self, field: str) -> str | None:
        if field == "prompt_logprobs" and self.prompt_logprobs is None and self.scored is not None:
            return "echo"
        if field == "logprobs" and self.logprobs is None and self.drawn_logprobs is not None:
            return "best_of"
        return super().asking(field)


def parse_completion(body: bytes, reading: Reading | None = None) -> CompletionRequest:
    """Parse a completion body. Raises ApiError naming the field."""
    completion = checked(CompletionBody, NEUTRAL_COMPLETION, body, reading)
    returned = completion.n or 1
    n = completion.best_of or returned
    if len(completion.prompt) * n > MAX_SEQUENCES:
        of = "n" if n == returned else "best_of"
        raise invalid("prompt", f"Prompts times `{of}` must be at most {MAX_SEQUENCES}.")
    if n < returned:
        raise invalid("best_of", "`best_of` must be at least `n`.")
    if n > returned and completion.stream:
        raise invalid("best_of", "`best_of` more than `n` is not available in streams.")
    if completion.suffix and (completion.echo or completion.truncate_prompt_tokens is not None):
        field = "echo" if completion.echo else "truncate_prompt_tokens"
        raise invalid(field, f"`{field}` cannot be combined with `suffix`.")
    scored = completion.prompt_logprobs
    if completion.echo and completion.logprobs is not None:
        scored = max(completion.logprobs, scored or 0)
    return CompletionRequest(
        suffix=completion.suffix or "",
        prompts=completion.prompt,
        is_marked=completion.add_special_tokens is not False,
        logprobs=completion.logprobs,
        echo=bool(completion.echo),
        returned=returned,
        **common_fields(completion) | {"n": n, "scored": scored},
    )


def common_fields(body: GenerationBody) -> dict[str, Any]:
    """Return the fields of a request that chats and completions have in common. Raises ApiError naming the field."""
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if body.max_tokens not in (None, max_tokens):
        raise invalid("max_tokens", "`max_tokens` and `max_completion_tokens` are both given, but differ.")
    min_tokens = body.min_tokens or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise invalid("min_tokens", "`min_tokens` must be at most `max_tokens`.")
    structure = read_structure(body)
    if structure is not None and body.ignore_eos:
        reason = f"`ignore_eos` contradicts `{structure.param}`, which defines where the output ends."
        raise invalid("ignore_eos", reason)
    if body.prompt_logprobs is not None and body.stream:
        raise invalid("prompt_logprobs", "`prompt_logprobs` is not available in streams.")
    options = body.stream_options
    asks_usage = bool(options and (options.include_usage or options.continuous_usage_stats))
    if asks_usage and not body.stream:
        raise invalid("stream_options", "`stream_options` needs `stream: true`.")
    return {
        **stated_fields(body),
        "max_tokens": max_tokens,
        "max_tokens_param": "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens",
        "include_usage": asks_usage,
        "continuous_usage": bool(options and options.continuous_usage_stats),
        "stop_token_ids": tuple(body.stop_token_ids or ()),
        "structure": structure,
        "prompt_logprobs": body.prompt_logprobs,
        "scored": body.prompt_logprobs,
        "display": read_display(body),
        "bad_words": tuple(body.bad_words or ()),
    }


def stated_fields(body: BaseModel) -> dict[str, Any]:
    """Return the fields of a request that a body of any API states under the same names, and the sampling parameters
    that it states, even usual ones, since the model's defaults may differ."""
    draw = _stated(body, _DRAW_FIELDS)
    if draw.get("top_p") == 0.0:  # the smallest set of tokens with any mass is the most likely token
        draw |= {"top_p": 1.0, "top_k": 1}
    elif draw.get("top_k") == -1:  # vLLM's value for no limit
        draw["top_k"] = 0
    return {**_stated(body, _SAME_FIELDS), "draw": draw}


def _stated(body: BaseModel, names: frozenset[str]) -> dict[str, Any]:
    values = body.__dict__  # of all fields
    return {name: values[name] for name in names & body.model_fields_set if values[name] is not None}
