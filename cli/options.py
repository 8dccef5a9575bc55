"""Commands whose options come from a table."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping

Command = Callable[..., None]


def with_options(
    options: Mapping[str, object], defaults: Mapping[str, object] | None = None
) -> Callable[[Command], Command]:
    """Replace the `**` parameter of a command by options: parameter name → annotation. They default to None.

    They follow the command's positional parameters and precede its keyword-only ones."""

    def add(command: Command) -> Command:
        *own, _ = inspect.signature(command).parameters.values()
        last = [each for each in own if each.kind is inspect.Parameter.KEYWORD_ONLY]
        added = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=(defaults or {}).get(name), annotation=annotation
            )
            for name, annotation in options.items()
        ]
        parameters = [*own[: len(own) - len(last)], *added, *last]
        vars(command)["__signature__"] = inspect.Signature(parameters)  # typer reads it and the annotations
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return add


def with_fields(shape: type) -> Callable[[Command], Command]:
    """Replace the `**` parameter of a command by the annotated fields of a dataclass, with their defaults."""
    fields = dataclasses.fields(shape)
    return with_options({each.name: each.type for each in fields}, {each.name: each.default for each in fields})
