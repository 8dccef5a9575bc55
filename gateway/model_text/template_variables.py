"""The variables of one chat template that a request may set. Which of them have an effect is seen from the template's
source, not from the model's name."""

from collections.abc import Collection, Iterator
from typing import Any

from fairlane.gateway.dialects.openai.rendering import USUAL_RENDERING, VARIABLES, Rendering
from fairlane.gateway.errors import invalid
from fairlane.gateway.model_text.template_taint import given

# Names of the variable that turns reasoning on and off.
_SWITCHES = ("enable_thinking", "thinking")
# A budget of no tokens turns reasoning off too.
_BUDGET = "thinking_budget"
_EFFORT, _DOCUMENTS = "reasoning_effort", "documents"
# Efforts that a model without efforts serves as it is.
_USUAL_EFFORTS = (None, "none", "medium")


class TemplateVariables:
    """The variables that one template reads."""

    def __init__(self, read: Collection[str], allowed: Collection[str], *, may_reason: bool) -> None:
        """`allowed`: those that callers may name. `may_reason`: the model's output can contain reasoning."""
        self._read = frozenset(read)
        self._allowed = frozenset(allowed)
        self._may_reason = may_reason
        self._switch = next((name for name in _SWITCHES if name in self._read), None)

    def values(self, asked: Rendering) -> dict[str, Any]:
        """Return the values that a request sets, with the caller's text tainted. Raises ApiError naming the field."""
        values: dict[str, Any] = {}
        if asked is USUAL_RENDERING:
            return values
        if self._switch is not None and asked.reasons is not None:
            values[self._switch] = asked.reasons
        elif asked.reasons is False and _BUDGET in self._read:
            values[_BUDGET] = 0
        if asked.effort is not None and _EFFORT in self._read:
            values[_EFFORT] = asked.effort
        for name, value in asked.variables.items():
            if name in self._read and name not in self._allowed:
                param = f"{VARIABLES}.{name}"
                raise invalid(param, f"`{param}` may not be set here: the operator's settings do not list it.")
            values[name] = given(value)
        if asked.documents:
            if _DOCUMENTS not in self._read:
                raise invalid(_DOCUMENTS, "`documents`: this model's chat template reads none.")
            values[_DOCUMENTS] = given(list(asked.documents))
        return values

    def rejected(self, asked: Rendering) -> str:
        """Return the field to name if the template rejects the values that a request sets."""
        if asked.effort is not None and _EFFORT in self._read:
            return asked.effort_param
        return VARIABLES if asked.variables else _DOCUMENTS

    def unread(self, asked: Rendering) -> Iterator[str]:
        """Yield the hints of a request that have no effect, by field."""
        if asked.effort not in _USUAL_EFFORTS and _EFFORT not in self._read:
            yield asked.effort_param
        if asked.reasons is False and self._may_reason and not self._turns_off(asked):
            yield asked.reasons_param
        for name in asked.variables:
            if name not in self._read:
                yield f"{VARIABLES}.{name}"

    def _turns_off(self, asked: Rendering) -> bool:
        return self._switch is not None or _BUDGET in self._read or (asked.effort == "none" and _EFFORT in self._read)
