"""A command that replaces itself with a process; its options come from the process's settings."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from fairlane.cli.options import with_options
from fairlane.scheduler.protocol.settings import DEFAULT_CONFIG, SharedSettings
from fairlane.scheduler.protocol.settings_help import SettingHelp, described

EPILOG = "Every other setting comes from the settings file or a FAIRLANE_ variable: see docs/configuration.md."
Config = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Settings file.", show_default=f"{DEFAULT_CONFIG}, if there is one"),
]
Check = Annotated[bool, typer.Option("--check-config", help="Check the settings and exit.")]


def process_app(
    module: str, settings: type[SharedSettings], names: Sequence[str], check: Callable[[], None]
) -> typer.Typer:
    """Build the command that becomes `python -m module`.

    `names`: settings that have a flag. `check` is called first, and ends the command if packages are missing."""
    helps = described(settings, names)
    app = typer.Typer(add_completion=False)

    @app.command(epilog=EPILOG)
    @with_options({_parameter(each): Annotated[str | None, _option(each)] for each in helps})
    def run(config: Config = None, check_config: Check = False, **flags: str | None) -> None:
        check()
        arguments = [module, *(["--config", config] if config is not None else [])]
        arguments += ["--check-config"] if check_config else []
        for each in helps:
            value = flags[_parameter(each)]
            arguments += [] if value is None else [each.flag, value]
        os.execv(sys.executable, [sys.executable, "-m", *arguments])  # noqa: S606 - same program, no shell

    return app


def _parameter(setting: SettingHelp) -> str:
    return setting.flag.removeprefix("--").replace("-", "_")


def _option(setting: SettingHelp) -> object:
    text = f"{setting.description} Overrides {setting.variable}."
    return typer.Option(setting.flag, metavar=setting.value, help=text, show_default=setting.default or False)
