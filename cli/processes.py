"""`fairlane gateway` and `fairlane worker`: each replaces itself with a process of that kind.

Their options come from the descriptions of the process's settings, and are passed on unchanged."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from fairlane.cli.main import EXTRA, need
from fairlane.cli.options import with_options
from fairlane.scheduler.protocol.settings import DEFAULT_CONFIG, SharedSettings
from fairlane.scheduler.protocol.settings_help import SettingHelp, described

EPILOG = "Every other setting comes from the settings file or a FAIRLANE_ variable: see docs/configuration.md."
Config = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Settings file.", show_default=f"{DEFAULT_CONFIG}, if there is one"),
]
Check = Annotated[bool, typer.Option("--check-config", help="Check the settings and exit.")]


def gateway() -> typer.Typer:
    """Build `fairlane gateway`."""
    from fairlane.gateway.config import FLAGS, GatewaySettings

    return _app("fairlane.gateway", GatewaySettings, FLAGS, EXTRA)


def worker() -> typer.Typer:
    """Build `fairlane worker`. The process checks its packages itself, since they depend on the engine."""
    from fairlane.worker.config import FLAGS, WorkerSettings

    return _app("fairlane.worker", WorkerSettings, FLAGS)


def _app(module: str, settings: type[SharedSettings], names: Sequence[str], extra: str | None = None) -> typer.Typer:
    options = {each.flag.removeprefix("--").replace("-", "_"): each for each in described(settings, names)}
    app = typer.Typer(add_completion=False)

    @app.command(epilog=EPILOG)
    @with_options({name: Annotated[str | None, _option(each)] for name, each in options.items()})
    def run(config: Config = None, check_config: Check = False, **flags: str | None) -> None:
        if extra is not None:
            need(extra)
        arguments = [module, *(["--config", config] if config is not None else [])]
        arguments += ["--check-config"] if check_config else []
        for name, value in flags.items():
            arguments += [] if value is None else [options[name].flag, value]
        os.execv(sys.executable, [sys.executable, "-m", *arguments])  # noqa: S606 - same program, no shell

    return app


def _option(setting: SettingHelp) -> object:
    text = f"{setting.description} Overrides {setting.variable}."
    return typer.Option(setting.flag, metavar=setting.value, help=text, show_default=setting.default or False)
