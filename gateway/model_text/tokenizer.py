"""Text to tokens and back, for one model: everything a gateway knows of a model's language comes from its card.

Stop strings in a text that arrives piece by piece (Knuth, Morris, Pratt: constant work per character).
"""

import codecs
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec
from tokenizers import Tokenizer

from fairlane.gateway.dialects.openai.requests import Effort, Prompt, Turn
from fairlane.gateway.dialects.openai.tools import Tool
from fairlane.gateway.dialects.tools.deltas import OutputReader
from fairlane.gateway.dialects.tools.description import spelled, with_tools
from fairlane.gateway.dialects.tools.output_format import OutputFormat
from fairlane.gateway.errors import invalid
from fairlane.gateway.model_text.chat_template import ChatTemplate, TemplateRefusal
from fairlane.gateway.model_text.control_tokens import ControlTokens
from fairlane.gateway.model_text.conversation import Conversation
from fairlane.gateway.model_text.template_taint import given
from fairlane.gateway.model_text.vocabulary import Vocabulary
from fairlane.scheduler.protocol.messages import ModelCard

_TAIL_TOKENS = 64
_USUAL_EFFORTS = ("none", "medium")
"""What clients say that want nothing."""


class StopMatcher:
    """Lets text through up to the first stop string to be completed, and holds back what could begin one.

    Where several are completed by the same character, the longest counts: it began first.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [(stop, [0]) for stop in stops]
        """Each with the borders of its prefixes, as far as a match has come: one that never begins costs nothing."""
        self._matched = [0] * len(self._stops)
        self._held = ""
        self.stopped_by: str | None = None
        """The stop string that was completed."""

    @property
    def stopped(self) -> bool:
        """One was: nothing more is let through."""
        return self.stopped_by is not None

    def feed(self, text: str) -> str:
        """The text that is now known to belong to no stop string."""
        if not self._stops:
            return text
        for position, character in enumerate(text):
            completed = self._advance(character)
            if completed:
                seen, self._held = self._held + text[: position + 1], ""
                self.stopped_by = seen[len(seen) - completed :]
                return seen[: len(seen) - completed]
        seen = self._held + text
        free = len(seen) - max(self._matched)
        self._held = seen[free:]
        return seen[:free]

    def release(self) -> str:
        """What was held back, once it is known that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> int:
        """Take one character in; the length of the longest stop string that it completes, or 0."""
        completed = 0
        for index, (stop, borders) in enumerate(self._stops):
            matched = self._matched[index]
            while matched and stop[matched] != character:
                matched = borders[matched - 1]
            matched += stop[matched] == character
            if matched > len(borders):
                _extend(borders, stop)
            if matched == len(stop):
                completed = max(completed, matched)
            else:
                self._matched[index] = matched
        return completed


def _extend(borders: list[int], stop: str) -> None:
    """Append the border of the next longer prefix: the length of its longest proper prefix that is also its suffix."""
    index, length = len(borders), borders[-1]
    while length and stop[index] != stop[length]:
        length = borders[length - 1]
    borders.append(length + (stop[index] == stop[length]))


_new_decoder = codecs.getincrementaldecoder("utf-8")


class PromptTooLong(Exception):
    """A text that the model's context cannot hold, whatever its tokens are: it was not tokenised."""

    def __init__(self, least_tokens: int) -> None:
        super().__init__(f"at least {least_tokens} tokens")
        self.least_tokens = least_tokens


class TextModel:
    """One model's tokenizer and chat template. Immutable, and safe to use from several threads."""

    def __init__(self, card: ModelCard, *, raw_prompts: bool = True) -> None:
        """Raises ValueError where the card's tokenizer cannot be read. A chat template that cannot be used costs
        only chat: `template_problem` says why. `raw_prompts`: a plain prompt may name control tokens."""
        self.card = card
        self._tokenizer = _tokenizer(card)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocabulary = Vocabulary(self._tokenizer, card.tokenizer_json)
        added = self._tokenizer.get_added_tokens_decoder()
        written = "".join(filter(None, (card.chat_template, card.bos_token, card.eos_token)))
        self._control = ControlTokens(self._tokenizer, written, self.vocabulary.spelled)
        self._raw_prompts = raw_prompts
        self.template_problem: str | None = None
        """For operators: nothing of what requests hold is in it."""
        self._template = self._read_template()
        special = {entry.content for entry in added.values() if entry.special}
        names = {entry.content: token for token, entry in added.items()}
        response_template = card.response_template if isinstance(card.response_template, str) else None
        ends = {self.token_text(token) for token in card.eos_token_ids}
        self.output_format = OutputFormat(card.chat_template or "", names, special, response_template, ends)
        """How it answers."""
        self.vocabulary_with_marks = self.vocabulary.showing(self.output_format.markers - ends)
        self._conversation = Conversation(
            card.chat_template or "", self._render, lambda call: spelled(call, self.output_format.syntax)
        )

    def chat_prompt(
        self, messages: Sequence[Turn], tools: Sequence[Tool] = (), effort: Effort | None = None
    ) -> tuple[int, ...]:
        """The conversation as the model reads it, up to where its answer begins, told of these tools and how much to
        think. All of the caller's is text: what names a control token in it is no such token.

        Raises ApiError naming `messages` where the model's template refuses them or the model has no template, or the
        effort where it knows of none; PromptTooLong.
        """
        if self._template is None:
            raise invalid("messages", "This model has no chat template that can be used; /v1/completions works.")
        if effort is not None and not self._template.reads_effort:
            if effort.param is not None and effort.word not in _USUAL_EFFORTS:
                raise invalid(effort.param, f"`{effort.param}`: this model does not know of efforts.")
            effort = None
        if tools and not self._template.reads_tools:
            takes_system = self._conversation.takes_system
            messages, tools = with_tools(messages, tools, self.output_format.syntax, takes_system=takes_system), ()
        try:
            offered = [tool.as_json() for tool in tools] or None
            text = self._render(self._conversation.messages(messages), offered, None if effort is None else effort.word)
        except TemplateRefusal as refusal:
            reason = refusal.reason
        else:
            self._check_length(text)
            return self._control.encode(text)
        raise invalid("messages", reason)

    def _render(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, effort: str | None = None
    ) -> str:
        if self._template is None:
            raise TemplateRefusal("This model has no chat template.")
        return self._template.render(messages, tools, effort)

    def tail(self, prompt: Sequence[int]) -> str:
        """The end of a prompt as text, control tokens by name: what the template has written of the answer is in it."""
        return b"".join(map(self.token_bytes, prompt[-_TAIL_TOKENS:])).decode("utf-8", "replace")

    def prompt(self, prompt: Prompt) -> tuple[int, ...]:
        """A plain completion's prompt.

        Raises ApiError naming `prompt` for ids outside the vocabulary, PromptTooLong.
        """
        if isinstance(prompt, str):
            return self.encode(prompt)
        return self._ids(prompt, "prompt")

    def _ids(self, prompt: tuple[int, ...], param: str) -> tuple[int, ...]:
        if len(prompt) > self.card.context_length:
            raise PromptTooLong(len(prompt))
        if max(prompt) >= self.card.vocab_size:
            raise invalid(param, f"`{param}` holds a token id that is not below {self.card.vocab_size}.")
        return prompt

    def input(self, prompt: Prompt) -> tuple[int, ...]:
        """An embedder's input: text, in which no name of a control token is one, between the marks that the model
        wants; or token ids as they are.

        Raises ApiError naming `input` for ids outside the vocabulary, PromptTooLong.
        """
        if isinstance(prompt, str):
            self._check_length(prompt)
            before, after = self._marks
            return (*before, *self._control.encode(given(prompt)), *after)
        return self._ids(prompt, "input")

    def encode(self, text: str, *, marked: bool = True) -> tuple[int, ...]:
        """Token ids of a plain text. `marked`: with the marks the model wants around one. Raises PromptTooLong."""
        self._check_length(text)
        if not self._raw_prompts:
            before, after = self._marks if marked else ([], [])
            return (*before, *self._control.encode(given(text)), *after)
        # The library's plain `encode` would keep all other threads waiting, the event loop's among them.
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=marked)
        return tuple(encoding.ids)

    def output_reader(self, prompt: Sequence[int], tools: Sequence[Tool]) -> OutputReader | None:
        """What reads the output of one choice, where these tools may be called; None where all of it is content."""
        if not self.output_format.needs_reader(tools):
            return None
        return self.output_format.reader(self.tail(prompt), tools)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, without the special ones."""
        stream = TokenStream(self)
        return stream.push(token_ids).text + stream.flush().text

    def spelled_out(self, token_ids: Sequence[int]) -> str:
        """The text of whole tokens, special ones by their own names; half a character reads U+FFFD."""
        spelled, begun = [], False
        for token_id in token_ids:
            piece = self.vocabulary.piece(token_id, first=not begun)
            begun = begun or piece is not None
            spelled.append(self.token_bytes(token_id) if piece is None else piece)
        return b"".join(spelled).decode("utf-8", "replace")

    def token_text(self, token_id: int) -> str:
        """One token alone, as text; half a character reads U+FFFD, a special token its own name."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """One token alone, as bytes."""
        return self.vocabulary.token_bytes(token_id)

    def _check_length(self, text: str) -> None:
        least_tokens = self.vocabulary.least_tokens(text)
        if least_tokens > self.card.context_length:
            raise PromptTooLong(least_tokens)

    @cached_property
    def _marks(self) -> tuple[list[int], list[int]]:
        """What the model wants before and after a plain text."""
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        marked = self._tokenizer.encode("a", add_special_tokens=True).ids
        start = next(index for index in range(len(marked)) if marked[index : index + len(plain)] == plain)
        return marked[:start], marked[start + len(plain) :]

    def _read_template(self) -> ChatTemplate | None:
        if self.card.chat_template is None:
            self.template_problem = "it has no chat template"
            return None
        try:
            return ChatTemplate(
                self.card.chat_template, bos_token=self.card.bos_token or "", eos_token=self.card.eos_token or ""
            )
        except TemplateRefusal as refusal:
            self.template_problem = refusal.reason
            return None


def _tokenizer(card: ModelCard) -> Tokenizer:
    try:
        return Tokenizer.from_str(card.tokenizer_json)
    except Exception as error:  # the library raises bare Exception for whatever is wrong with the JSON
        raise ValueError(f"the tokenizer of model card {card.model!r} cannot be read") from error


class TextPiece(msgspec.Struct, frozen=True):
    """What a push brought."""

    text: str
    """New text, to be sent now."""
    counted: int
    """Tokens of the choice that are charged so far: all that were pushed, or those up to and with the one that
    completed a stop string."""
    stopped: bool
    """A stop string was completed; nothing follows."""

    def __repr__(self) -> str:
        return f"TextPiece({len(self.text)} characters, counted={self.counted}, stopped={self.stopped})"


class TokenStream:
    """Text of ONE choice as its tokens arrive; the same text however they are split into pushes.

    No half of a character is ever given out, no stop string and nothing that could become the start of one.
    """

    def __init__(
        self, model: TextModel, stop: Sequence[str] = (), *, min_tokens: int = 0, control_text: bool = False
    ) -> None:
        """`min_tokens`: stop strings count only in the text after that many tokens. `control_text`: special tokens by
        which the model marks calls and reasoning are shown by name, for what reads those."""
        self._vocabulary = model.vocabulary_with_marks if control_text else model.vocabulary
        self._utf8: codecs.IncrementalDecoder | None = None
        """Made with the first character that is not ASCII."""
        self._stops = StopMatcher(stop) if stop else None
        self._min_tokens = min_tokens
        self._counted = 0
        self._begun = False
        self._is_partial = False
        """A character's first bytes wait for the rest."""

    @property
    def stopped_by(self) -> str | None:
        """The stop string that was completed."""
        return None if self._stops is None else self._stops.stopped_by

    def push(self, token_ids: Sequence[int]) -> TextPiece:
        """The text that these next tokens bring. After a stop: nothing more."""
        stops = self._stops
        if stops is None:
            self._counted += len(token_ids)
            return TextPiece(self._text_of(token_ids), self._counted, False)
        shown = []
        for token_id in token_ids:
            if stops.stopped:
                break
            self._counted += 1
            text = self._text_of((token_id,))
            shown.append(stops.feed(text) if self._counted > self._min_tokens else text)
        return TextPiece("".join(shown), self._counted, stops.stopped)

    def flush(self) -> TextPiece:
        """The text that was still held back, at the end of the choice."""
        stops = self._stops
        if stops is not None and stops.stopped:
            return TextPiece("", self._counted, True)
        rest = self._utf8.decode(b"", final=True) if self._utf8 is not None else ""
        if stops is None:
            return TextPiece(rest, self._counted, False)
        rest = stops.feed(rest) if self._counted > self._min_tokens else rest
        return TextPiece(rest + stops.release(), self._counted, stops.stopped)

    def _text_of(self, token_ids: Sequence[int]) -> str:
        spelled = self._vocabulary.spell(token_ids, first=not self._begun)
        if spelled is None:
            return ""
        self._begun = True
        if spelled.isascii() and not self._is_partial:
            return spelled.decode("ascii")
        self._utf8 = self._utf8 or _new_decoder("replace")
        text = self._utf8.decode(spelled)
        self._is_partial = bool(self._utf8.getstate()[0])
        return text
