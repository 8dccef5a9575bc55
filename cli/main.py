"""The `fairlane` command: finds the subcommand and imports only what it needs."""

import importlib
import inspect
import os
import re
import sys
from importlib import metadata
from typing import Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperGroup

NAME = "fairlane"
# Set by a shell that asks for completions.
COMPLETE = "_FAIRLANE_COMPLETE"
# Subcommands: module, Typer or the function that builds it, and help.
MODULES = {
    "gateway": (
        "processes:gateway",
        "Run one gateway of FAIRLANE_GATEWAY__PROCESSES processes, against FAIRLANE_REDIS_URL.",
    ),
    "worker": ("processes:worker", "Run one worker process, against FAIRLANE_REDIS_URL."),
    "tenants": ("tenants:app", "Create, show, change, suspend and delete tenants; apply a file of them."),
    "keys": ("keys:app", "Create, list, rotate and revoke a tenant's API keys."),
    "quotas": ("keys:quotas", "Show and change a tenant's limits."),
    "tokens": ("keys:tokens", "Create, list and revoke operators' tokens with roles."),
    "config": ("config:app", "Show this shell's settings with their sources; check them."),
    "doctor": ("doctor.command:app", "Check that this machine is ready to serve, and say what to do."),
    "import": ("imports:app", "Import teams and keys from another gateway."),
    "prices": ("prices:app", "Show and set token prices by model and lane."),
    "usage": ("reports:usage", "Report tokens, requests and cost from the ledger."),
    "workers": ("reports:workers", "List and drain workers."),
    "lanes": ("reports:lanes", "Show each lane's queue, running work, rate and targets."),
    "requests": ("requests:app", "Show running and recent requests, and why they were slow or failed."),
    "audit": ("audit:app", "Show who changed what, and when."),
    "chat": ("chat:app", "Talk to a model through the gateway."),
    "top": ("top.command:app", "Watch lanes, tenants, workers and KV blocks in the terminal."),
    "bench": ("bench.command:app", "Load a running gateway and report latency and goodput; compare two runs."),
    "backup": ("recovery.command:backup_app", "Save tenants, keys, budgets, ledgers, files and batches."),
    "restore": ("recovery.command:restore_app", "Restore a backup into an empty store."),
    "migrate": ("recovery.migrate:app", "Check or migrate the store's data to this release's schema."),
    "simulate": ("simulation.simulate:app", "Run the real scheduler in virtual time over a request trace."),
    "record": ("simulation.record:app", "Collect what gateways record of their requests into one trace."),
    "advise": (
        "simulation.advise:app",
        "Advise how many workers a trace needs, and what settings could change.",
    ),
}
EXTRA = "gateway"
# Exit code for wrong arguments or settings, or a start that failed.
BAD_USAGE = 2
FORWARD = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

Option = typer.Option
ConfigFile = Annotated[str | None, Option("--config", help="Settings file; defaults to fairlane.yaml if it exists.")]


class Commands(TyperGroup):
    """Subcommands that are imported only when named."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - typer's own vendored click types are private
        first, *others = super().list_commands(ctx)
        return [first, *MODULES, *others]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        if cmd_name not in MODULES:
            return super().get_command(ctx, cmd_name)
        place, text = MODULES[cmd_name]
        module, _, attribute = place.partition(":")
        try:
            found = getattr(importlib.import_module(f"fairlane.cli.{module}"), attribute)
            command = typer.main.get_command(found() if inspect.isfunction(found) else found)
        except ModuleNotFoundError as error:
            if str(error.name).startswith(NAME):
                raise
            command = _absent(_lacks(error, cmd_name))
        command.name, command.help = cmd_name, text
        return command


def _lacks(error: ModuleNotFoundError, command: str) -> str:
    return f"{error.name} is not installed: `{NAME} {command}` needs {NAME}[{EXTRA}]"


def _absent(complaint: str) -> Any:  # noqa: ANN401
    """Return a placeholder for a subcommand whose packages are not installed: it is listed, and fails when called."""
    absent = typer.Typer(add_completion=False)

    @absent.command(context_settings=FORWARD)
    def complain(_: typer.Context) -> None:
        refuse(complaint)

    return typer.main.get_command(absent)


def refuse(complaint: str) -> NoReturn:
    """Exit with a complaint about a start that failed."""
    typer.echo(f"{NAME}: {complaint}", err=True)
    raise typer.Exit(BAD_USAGE)


def packages_of(extra: str) -> list[str]:
    """Return the packages that an extra requires on every platform."""
    found = []
    for requirement in metadata.requires(NAME) or ():
        named, _, marker = requirement.partition(";")
        if re.search(rf"""extra == ['"]{extra}['"]""", marker) and "sys_platform" not in marker:
            found.append(re.split(r"[^\w.-]", named.strip(), maxsplit=1)[0])
    return found


def version(package: str) -> str | None:
    """Return an installed package's version; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def need(extra: str) -> None:
    """Exit if a package of the extra is not installed."""
    for package in packages_of(extra):
        if version(package) is None:
            refuse(f"{package} is not installed: this needs {NAME}[{extra}]")


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"{NAME} {version(NAME)}")
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Fairlane: multi-tenant LLM serving on two lanes.

    Exit codes: 0 success; 1 refused by the gateway, or a check found a fault; 2 wrong arguments or settings, or a start
    that failed; 130 interrupted."""


@app.command()
def serve(
    host: Annotated[str | None, Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, Option(help="Port to listen on.")] = None,
    model: Annotated[str | None, Option(help="Directory, hub id or GGUF file.")] = None,
    data_dir: Annotated[str | None, Option(help="Directory of the store and the models.")] = None,
    engine: Annotated[str | None, Option(help="own, or the server at --engine-url: vllm, sglang, openai.")] = None,
    engine_url: Annotated[str | None, Option(help="URL of an external engine.")] = None,
    engine_model: Annotated[str | None, Option(help="Which of the engine's models; defaults to its first.")] = None,
    config: ConfigFile = None,
) -> None:
    """Serve on one machine: embedded Valkey, one gateway, one worker."""
    need(EXTRA)
    import asyncio

    from fairlane.cli import serve as command
    from fairlane.scheduler.protocol.settings import SharedSettings, load, read_document

    flags = {"host": host, "port": port, "model": model, "data_dir": data_dir}
    flags |= {"worker.engine": engine, "worker.engine_url": engine_url, "worker.engine_model": engine_model}
    try:
        document = read_document(config, os.environ)
        settings = load(SharedSettings, document=document, environ=os.environ, flags=flags)
        given = {name: str(value) for name, value in flags.items() if value is not None}
        variables = {f"FAIRLANE_{name.upper().replace('.', '__')}": value for name, value in given.items()}
        asyncio.run(command.serve(settings, config=config, flags=variables))
    except command.REFUSALS as error:
        refuse(str(error))


@app.command()
def completion(shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Print a shell's completion script: `source <(fairlane completion bash)`."""
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name=NAME, complete_var=COMPLETE, shell=shell))


def main() -> None:
    """Run the command line."""
    if COMPLETE in os.environ:  # a shell asks for completions
        from typer._completion_classes import completion_init

        completion_init()
    try:
        app(prog_name=NAME)
    except ModuleNotFoundError as error:
        if str(error.name).startswith(NAME):
            raise
        sys.stderr.write(f"{NAME}: {_lacks(error, sys.argv[1])}\n")
        sys.exit(BAD_USAGE)
    except BrokenPipeError:  # the reader of the output closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
