"""The `fairlane` command: finds the subcommand, and imports only what that one needs."""

import importlib
import os
import sys
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

NAME = "fairlane"
COMPLETE = "_FAIRLANE_COMPLETE"
"""In the environment of a call by a shell's completion."""
MODULES = {
    "tenants": ("tenants:app", "Create, show, change, suspend and delete tenants; apply a file of them."),
    "keys": ("keys:app", "Create, list, rotate and revoke a tenant's API keys."),
    "quotas": ("keys:quotas", "Show and change a tenant's limits."),
    "import": ("imports:app", "Take over teams and keys from another gateway."),
    "usage": ("reports:usage", "Tokens and requests from the ledger."),
    "workers": ("reports:workers", "List and drain workers."),
    "simulate": ("simulate:app", "The real scheduler in virtual time over a request trace."),
}
"""Subcommands: the module and the Typer in it, and the help."""
FORWARD = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

Option = typer.Option
ConfigFile = Annotated[str | None, Option("--config", help="Settings file; fairlane.yaml where there is one.")]


class Commands(TyperGroup):
    """These live in modules of their own and are imported when named."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - typer's own vendored click types are private
        """Every subcommand, these last."""
        return [*super().list_commands(ctx), *MODULES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        """A subcommand by name."""
        if cmd_name not in MODULES:
            return super().get_command(ctx, cmd_name)
        place, text = MODULES[cmd_name]
        module, _, attribute = place.partition(":")
        command = typer.main.get_command(getattr(importlib.import_module(f"fairlane.cli.{module}"), attribute))
        command.name, command.help = cmd_name, text
        return command


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def root() -> None:
    """Fairlane: multi-tenant LLM serving on two lanes."""


@app.command()
def serve(
    host: Annotated[str | None, Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, Option(help="Port to listen on.")] = None,
    model: Annotated[str | None, Option(help="Directory, hub id or GGUF file.")] = None,
    data_dir: Annotated[str | None, Option(help="Where the store and the models live.")] = None,
    engine: Annotated[str | None, Option(help="own, or the server at --engine-url: vllm, sglang, openai.")] = None,
    engine_url: Annotated[str | None, Option(help="Where the engine runs, if elsewhere.")] = None,
    engine_model: Annotated[str | None, Option(help="Which of the engine's models; its first.")] = None,
    config: ConfigFile = None,
) -> None:
    """Everything on one machine: embedded Valkey, one gateway, one worker."""
    import asyncio

    from fairlane.cli import serve as command
    from fairlane.cli.embedded_store import StoreError

    flags = {"host": host, "port": port, "model": model, "data_dir": data_dir}
    flags |= {"worker.engine": engine, "worker.engine_url": engine_url, "worker.engine_model": engine_model}
    try:
        settings = command.read_settings(config, flags)
        variables = {
            f"FAIRLANE_{name.upper().replace('.', '__')}": str(value)
            for name, value in flags.items()
            if value is not None
        }
        asyncio.run(command.serve(settings, config=config, flags=variables))
    except (command.ServeError, StoreError) as error:
        typer.echo(f"fairlane: {error}", err=True)
        raise typer.Exit(2) from None


@app.command(context_settings=FORWARD)
def gateway(ctx: typer.Context) -> None:
    """One gateway, of FAIRLANE_GATEWAY__PROCESSES processes, against FAIRLANE_REDIS_URL."""
    os.execv(sys.executable, [sys.executable, "-m", "fairlane.gateway", *ctx.args])  # noqa: S606 - same program, no shell


@app.command(context_settings=FORWARD)
def worker(ctx: typer.Context) -> None:
    """One worker process, against FAIRLANE_REDIS_URL."""
    os.execv(sys.executable, [sys.executable, "-m", "fairlane.worker", *ctx.args])  # noqa: S606


@app.command()
def completion(shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Print what makes a shell complete these commands: `source <(fairlane completion bash)`."""
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name=NAME, complete_var=COMPLETE, shell=shell))


def main() -> None:
    """The entry point."""
    if COMPLETE in os.environ:  # a shell asks how a line may go on
        from typer._completion_classes import completion_init

        completion_init()
    app(prog_name=NAME)
