"""Text to tokens and back for one model, from its model card."""

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property

from tokenizers import Tokenizer

from fairlane.gateway.dialects.media_marks import NO_MEDIA, Media
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
from fairlane.gateway.model_text.token_stream import TokenStream
from fairlane.gateway.model_text.vocabulary import Vocabulary
from fairlane.scheduler.protocol.media import MEDIA_IDS
from fairlane.scheduler.protocol.messages import ModelCard

_TAIL_TOKENS = 64


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
        self.generates, self.refused_fields = card.yields == "text", card.refused_fields
        self.closes_json = card.takes_grammars and "close_json" not in card.refused_fields
        self.vector_size = card.embedding_size if isinstance(card.embedding_size, int) else 1
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
        media: Media = NO_MEDIA,
    ) -> tuple[int, ...]:
        """Return the tokens of a conversation up to the model's response; the caller's text produces no control tokens.
        `last`: keep only that many. `media`: of the conversation. Raises ApiError as `ChatPrompts.text` does,
        PromptTooLong."""
        text = self._chat.text(messages, tools, asked)
        if media.read:
            return self._with_media(text, media, marked=asked.is_marked)
        return self._controlled(text, asked.is_marked, last)

    def unread(self, asked: Rendering) -> Iterator[str]:
        """Yield the hints that have no effect on this model's prompts, by field."""
        return self._chat.unread(asked)

    def tail(self, prompt: Sequence[int], continued: str = "") -> str:
        """Return the end of a prompt as text, control tokens by name: the template may begin the response there.
        `continued`: the text that the response continues; if it leaves reasoning open, return only the mark of that."""
        if continued and (opened := self.output_format.opened(continued)):
            return opened
        tokens = [token for token in prompt[-_TAIL_TOKENS:] if token < MEDIA_IDS]
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")

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

    def input(self, prompt: Prompt, most: int | None = None) -> tuple[int, ...]:
        """Return the tokens of an embedder's input: text without control tokens, or token ids as given; of longer ones
        the first `most`. Raises ApiError naming `input` for ids outside the vocabulary, PromptTooLong."""
        if not isinstance(prompt, str):
            return self._ids(prompt[:most], "input")
        before, after = self._marks
        room = None if most is None else max(0, most - len(before) - len(after))
        return (*before, *self.start(prompt, room), *after)

    def start(self, text: str, most: int | None) -> tuple[int, ...]:
        """Return the first `most` tokens of a text without control tokens, or all. Raises PromptTooLong for all."""
        if most is None:
            return self._controlled(given(text), marked=False)
        longest = self.vocabulary.longest_token
        return self._control.encode(given(text if longest is None else text[: most * longest + _MARGIN_CHARS]))[:most]

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

    def _with_media(self, text: str, media: Media, *, marked: bool) -> tuple[int, ...]:
        forms, ids, ids_of = self.card.media_forms, list[int](), media.ids()
        for piece, medium in media.pieces(text):
            ids += self._control.encode(self._bounded(piece, None))
            if medium is not None:
                form = forms[medium.item.kind]
                ids += (*form.before, *[ids_of[medium.digest]] * medium.tokens, *form.after)
            if len(ids) > self.card.context_length:
                raise PromptTooLong(len(ids))
        before, after = self._marks if marked else ((), ())
        return (*before, *ids, *after)

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
    def pair_marks(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the tokens that the model expects before, between and after two texts."""
        encoding = self._tokenizer.encode("a", "a")
        places: list[list[int]] = [[], [], []]
        seen = 0
        for token_id, sequence in zip(encoding.ids, encoding.sequence_ids, strict=True):
            if sequence is None:
                places[seen].append(token_id)
            else:
                seen = sequence + 1
        before, between, after = map(tuple, places)
        return before, between, after

    @cached_property
    def _marks(self) -> tuple[list[int], list[int]]:
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        marked = self._tokenizer.encode("a", add_special_tokens=True).ids
        start = next(index for index in range(len(marked)) if marked[index : index + len(plain)] == plain)
        return marked[:start], marked[start + len(plain) :]


def _ending(ids: tuple[int, ...], last: int | None) -> tuple[int, ...]:
    return ids if last is None else ids[-last:]
