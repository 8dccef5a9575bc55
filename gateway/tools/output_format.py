"""One model's way of answering: how to read its calls and reasoning, and how to make it call."""

from collections.abc import Mapping

from fairlane.gateway.tools.syntax import generic, syntax_of

_HARMONY = ("<|channel|>", "<|message|>")
"""What the template of gpt-oss writes: a format of its own, in which tools are namespaces of TypeScript."""


class OutputFormat:
    """One model's. Immutable, and safe to use from several threads."""

    def __init__(self, template: str, special: Mapping[str, int]) -> None:
        """`template`: the source of the chat template. `special`: ids of the special tokens, by name."""
        known = syntax_of(template)
        self.syntax = known or generic()
        is_harmony = known is None and all(text in template for text in _HARMONY)
        self.problem = "This model's tools (the Harmony format) are not supported yet." if is_harmony else None
        """Why no tools can be used with the model."""
        self.needs_control_text = not special.keys().isdisjoint(self.syntax.markers)
        """The reader has to see special tokens by name."""
