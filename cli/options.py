"""Commands whose options come from a table."""

import inspect
from collections.abc import Callable, Mapping

Command = Callable[..., None]


def with_options(options: Mapping[str, object]) -> Callable[[Command], Command]:
    """Replace the `**` parameter of a command by options: parameter name → annotation. They default to None.

    They follow the command's positional parameters and precede its keyword-only ones."""

    def add(command: Command) -> Command:
        *own, _ = inspect.signature(command).parameters.values()
        last = [each for each in own if each.kind is inspect.Parameter.KEYWORD_ONLY]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for name, annotation in options.items()
        ]
        parameters = [*own[: len(own) - len(last)], *added, *last]
        vars(command)["__signature__"] = inspect.Signature(parameters)  # typer reads it and the annotations
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return add
