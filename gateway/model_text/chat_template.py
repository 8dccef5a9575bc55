"""A model's chat template: renders a conversation to the text that the model reads, as transformers does."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import meta, nodes

from fairlane.gateway.model_text.template_sandbox import TemplateSandbox
from fairlane.gateway.model_text.template_taint import Value, given

MAX_SOURCE_CHARS = 128 * 1024
_MAX_FORMAT_CHARS = 64


class TemplateRefusal(Exception):
    """A template is unusable, or rejects the messages. `reason` contains no message content."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Raised(Exception):
    pass


def _raise_exception(message: object) -> None:
    raise _Raised(message if isinstance(message, str) else "")


class ChatTemplate:
    """One compiled template. Immutable, and safe to render from several threads."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Raise TemplateRefusal if the source is too long or cannot be compiled."""
        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateRefusal(f"the chat template is longer than {MAX_SOURCE_CHARS} characters")
        self._fixed = {"bos_token": bos_token, "eos_token": eos_token, "documents": None}
        functions: dict[str, Callable[..., Value]] = {
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: now().strftime(form[:_MAX_FORMAT_CHARS]),
        }
        environment = TemplateSandbox(functions)
        try:
            parsed = environment.parse(source)
            constants = [constant.value for constant in parsed.find_all(nodes.Const)]
            self._literals = frozenset(value for value in constants if isinstance(value, str))
            attributes = [found.attr for found in parsed.find_all(nodes.Getattr)]
            # Names of the fields that it may read, among other literals.
            self.fields = self._literals.union(attributes)
            read = meta.find_undeclared_variables(parsed)
            # Names of the variables that it may read.
            self.reads = frozenset(read)
            self._template = environment.from_string(source)
            self._template.globals = dict(self._template.globals)  # jinja2 uses a ChainMap, which is slow to copy
        except Exception as error:  # noqa: BLE001 - the template is foreign code: compiling it can fail in any way
            raise TemplateRefusal(f"the chat template cannot be compiled ({type(error).__name__})") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Value] | None = None,
        *,
        begins_turn: bool = True,
    ) -> str:
        """Render the conversation up to the model's response or, unless `begins_turn`, up to the last message's end,
        with the caller's text tainted.

        All of a message is tainted except its role, which is one of the API's words; so are all tools. `variables`:
        further ones, tainted by the caller. Raises TemplateRefusal."""
        try:
            turns = [
                {key: value if key == "role" else given(value) for key, value in turn.items()} for turn in messages
            ]
            offered = None if tools is None else given(list(tools))
            own = {"messages": turns, "tools": offered, "add_generation_prompt": begins_turn}
            return self._template.render({**self._fixed, **(variables or {}), **own})
        except _Raised as raised:
            reason = self._shown(str(raised))
        except Exception:  # noqa: BLE001 - the template is foreign code: it can fail in any way, with content in the message
            reason = "The model's chat template does not support these messages."
        raise TemplateRefusal(reason)

    def _shown(self, message: str) -> str:
        if message in self._literals:
            return f"The model's chat template rejects the messages: {message[:200]}"
        return "The model's chat template rejects these messages."
