"""Text to tokens and back for one model, from its model card."""

import codecs
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import accumulate

from tokenizers import Tokenizer

from fairlane.common.redacted import Redacted
from fairlane.gateway.dialects.openai.rendering import USUAL_RENDERING, Rendering
from fairlane.gateway.dialects.openai.requests import Prompt, Turn
from fairlane.gateway.dialects.openai.tools import Tool
from fairlane.gateway.dialects.tools.deltas import OutputReader
from fairlane.gateway.dialects.tools.output_format import OutputFormat
from fairlane.gateway.errors import invalid
from fairlane.gateway.model_text.chat_prompts import ChatPrompts
from fairlane.gateway.model_text.control_tokens import ControlTokens
from fairlane.gateway.model_text.fill_in import find_fill_in
from fairlane.gateway.model_text.template_taint import given
from fairlane.gateway.model_text.vocabulary import Vocabulary
from fairlane.scheduler.protocol.messages import ModelCard

_TAIL_TOKENS = 64


class StopMatcher:
    """Emits text up to the first complete stop string, and holds back text that could begin one.

    If one character completes several, the longest wins, since it started first."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        # Where each stop string could begin in the held text. Each place is tried once, however the text is split.
        self._starts = [0] * len(self._stops)
        # The stop string that was completed, if any.
        self.stopped_by: str | None = None
        # The emitted text includes it.
        self.keeps_stop = False

    def feed(self, text: str) -> str:
        seen = self._held + text
        candidates = list(zip(self._stops, self._starts, strict=True))
        found = [(at + len(stop), at, stop) for stop, start in candidates if (at := seen.find(stop, start)) >= 0]
        if found:
            past, end, self.stopped_by = min(found)
            self._held = ""
            return seen[: past if self.keeps_stop else end]
        starts = [_possible_start(stop, seen, start) for stop, start in candidates]
        free = min(starts, default=len(seen))
        self._starts = [start - free for start in starts]
        self._held = seen[free:]
        return seen[:free]

    def release(self) -> str:
        held, self._held = self._held, ""
        return held


def _possible_start(stop: str, text: str, start: int) -> int:
    at = text.find(stop[0], max(start, len(text) - len(stop) + 1))
    while at >= 0 and not stop.startswith(text[at:]):
        at = text.find(stop[0], at + 1)
    return len(text) if at < 0 else at


_new_decoder = codecs.getincrementaldecoder("utf-8")


class PromptTooLong(Exception):
    """Text that is too long for the model's context however it is tokenised; it was not tokenised."""

    def __init__(self, least_tokens: int) -> None:
        super().__init__(f"at least {least_tokens} tokens")
        self.least_tokens = least_tokens


# Characters kept before the end of a prompt, where a cut may change tokens.
_MARGIN_CHARS = 1024
_MOST_BYTES_OF_A_CHARACTER = 4  # in UTF-8


class TextModel:
    """One model's tokenizer and chat template. Immutable, and safe to use from several threads."""

    def __init__(self, card: ModelCard, *, raw_prompts: bool = True, variables: Collection[str] = ()) -> None:
        """Raise ValueError if the card's tokenizer cannot be read. An unusable chat template only disables chat:
        `template_problem` has the reason. `raw_prompts`: a plain prompt may name control tokens. `variables`: of its
        chat template that requests may set."""
        self.card = card
        # Read by every request, and derived from the card once.
        self.is_embedder, self.refused_fields = card.is_embedder, card.refused_fields
        self.closes_json = card.takes_grammars and "close_json" not in card.refused_fields
        self.usual_draw, self.system_fingerprint = card.usual_draw, card.system_fingerprint
        try:
            self._tokenizer = Tokenizer.from_str(card.tokenizer_json)
        except Exception as error:  # the library raises a bare Exception for invalid JSON
            raise ValueError(f"the tokenizer of model card {card.model!r} cannot be read") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocabulary = Vocabulary(self._tokenizer, card.tokenizer_json)
        added = self._tokenizer.get_added_tokens_decoder()
        written = "".join(filter(None, (card.chat_template, card.bos_token, card.eos_token)))
        self._control = ControlTokens(self._tokenizer, written, self.vocabulary.spelled)
        self._raw_prompts = raw_prompts
        self._fill_in = find_fill_in(self._tokenizer.token_to_id)
        special = {entry.content for entry in added.values() if entry.special}
        names = {entry.content: token for token, entry in added.items()}
        response_template = card.response_template if isinstance(card.response_template, str) else None
        ends = {self.token_text(token) for token in card.eos_token_ids}
        self.output_format = OutputFormat(card.chat_template or "", names, special, response_template, ends)
        self.vocabulary_with_marks = self.vocabulary.showing(self.output_format.markers - ends)
        self._chat = ChatPrompts(card, self.output_format, variables)
        # For operators; contains no request content.
        self.template_problem = self._chat.problem

    def chat_prompt(
        self,
        messages: Sequence[Turn],
        tools: Sequence[Tool] = (),
        asked: Rendering = USUAL_RENDERING,
        last: int | None = None,
    ) -> tuple[int, ...]:
        """Return the tokens of a conversation up to the model's response; the caller's text produces no control tokens.
        `last`: keep only that many. Raises ApiError as `ChatPrompts.text` does, PromptTooLong."""
        return self._controlled(self._chat.text(messages, tools, asked), asked.is_marked, last)

    def unread(self, asked: Rendering) -> Iterator[str]:
        """Yield the hints that have no effect on this model's prompts, by field."""
        return self._chat.unread(asked)

    def tail(self, prompt: Sequence[int], continued: str = "") -> str:
        """Return the end of a prompt as text, control tokens by name: the template may begin the response there.
        `continued`: the text that the response continues; if it leaves reasoning open, return only the mark of that."""
        if continued and (opened := self.output_format.opened(continued)):
            return opened
        return b"".join(map(self.token_bytes, prompt[-_TAIL_TOKENS:])).decode("utf-8", "replace")

    def prompt(self, prompt: Prompt, *, marked: bool = True, last: int | None = None) -> tuple[int, ...]:
        """Return the tokens of a plain prompt, of the last ones so many; `marked` as in `encode`."""
        if isinstance(prompt, str):
            return self.encode(prompt, marked=marked, last=last)
        return self._ids(_ending(prompt, last), "prompt")

    def fill_in(self, prompt: Prompt, suffix: str, *, marked: bool) -> tuple[int, ...]:
        """Return the tokens of a prompt whose output is followed by the suffix. Raises ApiError naming `suffix` if the
        model cannot do that, PromptTooLong."""
        if self._fill_in is None:
            raise invalid("suffix", "`suffix`: this model has no fill-in-the-middle tokens.")
        before = self._marks[0] if marked else ()
        middle = self._fill_in.prompt(self.prompt(prompt, marked=False), self.encode(suffix, marked=False))
        return self._ids((*before, *middle), "prompt")

    def _ids(self, prompt: tuple[int, ...], param: str) -> tuple[int, ...]:
        if len(prompt) > self.card.context_length:
            raise PromptTooLong(len(prompt))
        if max(prompt) >= self.card.vocab_size:
            raise invalid(param, f"`{param}` contains a token id that is not below {self.card.vocab_size}.")
        return prompt

    def input(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the tokens of an embedder's input: text without control tokens, or token ids as given. Raises ApiError
        naming `input` for ids outside the vocabulary, PromptTooLong."""
        if isinstance(prompt, str):
            return self._controlled(given(prompt), marked=True)
        return self._ids(prompt, "input")

    def encode(self, text: str, *, marked: bool = True, last: int | None = None) -> tuple[int, ...]:
        """Return the tokens of plain text. `marked`: with the tokens that the model expects around it. Raises
        PromptTooLong."""
        if not self._raw_prompts:
            return self._controlled(given(text), marked, last)
        text = self._bounded(text, last)
        # The library's plain `encode` would block all other threads, including the event loop's.
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=marked)
        return _ending(tuple(encoding.ids), last)

    def bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the tokens of words that are not to be drawn: each as it begins a text, and after a space where that
        is as many tokens of which the first is another, as vLLM does."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            bare = self.encode(word.lstrip(), marked=False)
            spaced = self.encode(f" {word.lstrip()}", marked=False)
            if bare:
                found[bare] = None
            if spaced and len(spaced) == len(bare) and spaced[0] != bare[0]:
                found[spaced] = None
        return tuple(found)

    def _controlled(self, text: str, marked: bool, last: int | None = None) -> tuple[int, ...]:
        ids = self._control.encode(self._bounded(text, last))
        if marked:
            before, after = self._marks
            ids = (*before, *ids, *after)
        return _ending(ids, last)

    def output_reader(self, prompt: Sequence[int], tools: Sequence[Tool], continued: str = "") -> OutputReader | None:
        if not self.output_format.needs_reader(tools):
            return None
        return self.output_format.reader(self.tail(prompt, continued), tools)

    def decode(self, token_ids: Sequence[int]) -> str:
        stream = TokenStream(self)
        return stream.push(token_ids).text + stream.flush().text

    def spelled_out(self, token_ids: Sequence[int]) -> str:
        spelled, begun = [], False
        for token_id in token_ids:
            piece = self.vocabulary.piece(token_id, first=not begun)
            begun = begun or piece is not None
            spelled.append(self.token_bytes(token_id) if piece is None else piece)
        return b"".join(spelled).decode("utf-8", "replace")

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_name(self, token_id: int) -> tuple[str, bool]:
        """Return a token's text with the bytes of incomplete characters as `\\xf0\\x9f`, and whether it has any."""
        spelled = self.token_bytes(token_id)
        try:
            return spelled.decode("utf-8"), False
        except UnicodeDecodeError:
            return spelled.decode("utf-8", "backslashreplace"), True

    def token_bytes(self, token_id: int) -> bytes:
        return self.vocabulary.token_bytes(token_id)

    def _bounded(self, text: str, last: int | None) -> str:
        """Return a text, or an end of it with more than its `last` tokens. Raises PromptTooLong if it is all."""
        if last is None:
            self._check_length(text)
            return text
        longest = self.vocabulary.longest_token
        return text if longest is None else text[-(last * longest + _MARGIN_CHARS) :]

    def _check_length(self, text: str) -> None:
        if _MOST_BYTES_OF_A_CHARACTER * len(text) <= self.card.context_length:
            return  # it fits even with a token for each byte
        least_tokens = self.vocabulary.least_tokens(text)
        if least_tokens > self.card.context_length:
            raise PromptTooLong(least_tokens)

    @cached_property
    def _marks(self) -> tuple[list[int], list[int]]:
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        marked = self._tokenizer.encode("a", add_special_tokens=True).ids
        start = next(index for index in range(len(marked)) if marked[index : index + len(plain)] == plain)
        return marked[:start], marked[start + len(plain) :]


def _ending(ids: tuple[int, ...], last: int | None) -> tuple[int, ...]:
    return ids if last is None else ids[-last:]


class TextPiece(Redacted, frozen=True):
    """The result of a push."""

    text: str
    # Charged tokens of the choice so far: all of them, or those up to the one that completed a stop string.
    counted: int
    # A stop string was completed; no text follows.
    stopped: bool
    # Where the text of each token but the last ends, if requested.
    cuts: tuple[int, ...] = ()


class TokenStream:
    """The text of ONE choice as its tokens arrive. The result does not depend on how they are split into pushes.

    It never emits an incomplete character, a stop string, or text that could begin one. A character that the end of the
    stream cuts in half is dropped."""

    def __init__(
        self,
        model: TextModel,
        stop: Sequence[str] = (),
        *,
        min_tokens: int = 0,
        control_text: bool = False,
        by_token: bool = False,
    ) -> None:
        """`min_tokens`: stop strings only match text after that many tokens. `control_text`: show the special tokens
        that mark calls and reasoning by name, for an output reader. `by_token`: tell the tokens' texts apart."""
        self._by_token = by_token
        self._vocabulary = model.vocabulary_with_marks if control_text else model.vocabulary
        # Created with the first character that is not ASCII.
        self._utf8: codecs.IncrementalDecoder | None = None
        self._stops = StopMatcher(stop) if stop else None
        self._min_tokens = min_tokens
        self._counted = 0
        self._begun = False
        # The first bytes of a character wait for the rest.
        self._is_partial = False

    @property
    def stopped_by(self) -> str | None:
        return None if self._stops is None else self._stops.stopped_by

    def show(self, *, special: bool, ends: Collection[int], keeps_stops: bool) -> None:
        """Set what the text has of special tokens, stop strings and the tokens that end the choice."""
        self._vocabulary = self._vocabulary.showing(None if special else (), hidden=() if keeps_stops else ends)
        if self._stops is not None:
            self._stops.keeps_stop = keeps_stops

    def push(self, token_ids: Sequence[int]) -> TextPiece:
        stops = self._stops
        if stops is None and not (self._by_token and len(token_ids) > 1):
            self._counted += len(token_ids)
            return TextPiece(self._text_of(token_ids), self._counted, False)
        shown = []
        for token_id in token_ids:
            if self.stopped_by is not None:
                break
            self._counted += 1
            text = self._text_of((token_id,))
            shown.append(text if stops is None or self._counted <= self._min_tokens else stops.feed(text))
        cuts = tuple(accumulate(map(len, shown[:-1]))) if self._by_token else ()
        return TextPiece("".join(shown), self._counted, self.stopped_by is not None, cuts)

    def flush(self) -> TextPiece:
        stops = self._stops
        return TextPiece("" if stops is None else stops.release(), self._counted, self.stopped_by is not None)

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


class DiscardedTokens(TokenStream):
    """The output of a choice that requests none: its worker generates a placeholder, which is neither shown nor
    charged."""

    def push(self, token_ids: Sequence[int]) -> TextPiece:
        return TextPiece("", 0, True)
