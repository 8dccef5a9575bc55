"""The command itself: its version, and what is said where a package or a settings file is missing or wrong."""

import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from fairlane.cli import main as cli
from fairlane.cli.main import MODULES
from fairlane.gateway import config as gateway_config
from fairlane.scheduler.protocol.settings import SharedSettings
from fairlane.scheduler.protocol.settings_help import described
from fairlane.worker import config as worker_config

WITHOUT = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Without())
sys.argv = ["fairlane", *{arguments!r}]
from fairlane.cli.main import main
main()
"""


def without(packages: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command where these packages are not installed."""
    script = WITHOUT.format(packages=packages, arguments=arguments)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


def test_the_version_is_that_of_the_package() -> None:
    done = CliRunner().invoke(cli.app, ["--version"])

    assert (done.exit_code, done.output) == (0, f"fairlane {metadata.version('fairlane')}\n")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["tenants list", "serve"])
def test_a_command_without_its_packages_says_which_extra_brings_them(command: str) -> None:
    done = without(["httpx"], *command.split())

    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert "httpx is not installed" in line
    assert "fairlane[gateway]" in line


@pytest.mark.slow
def test_the_list_of_commands_needs_no_extra() -> None:
    done = without(["httpx", "starlette", "pydantic"], "--help")

    assert done.returncode == 0, done.stderr
    assert "tenants" in done.stdout


def test_a_process_of_its_own_is_not_started_without_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "requires", lambda _: ['no-such-package; extra == "gateway"'])

    done = CliRunner().invoke(cli.app, ["gateway"])

    assert (done.exit_code, done.output) == (
        2,
        "fairlane: no-such-package is not installed: this needs fairlane[gateway]\n",
    )


PROCESSES: list[tuple[str, type[SharedSettings], tuple[str, ...]]] = [
    ("gateway", gateway_config.GatewaySettings, gateway_config.FLAGS),
    ("worker", worker_config.WorkerSettings, worker_config.FLAGS),
]


@pytest.mark.parametrize(("command", "settings", "flags"), PROCESSES)
def test_help_of_a_process_describes_each_option_from_its_settings(
    command: str, settings: type[SharedSettings], flags: tuple[str, ...]
) -> None:
    done = CliRunner().invoke(cli.app, [command, "--help"], prog_name="fairlane", env={"COLUMNS": "1000"})

    assert done.exit_code == 0
    assert f"Usage: fairlane {command}" in done.output
    assert "VALUE" not in done.output
    for each in described(settings, flags):
        (line,) = [line for line in done.output.splitlines() if f" {each.flag} " in line]
        assert each.description, each.name
        assert each.value in line
        assert each.description in line
        assert each.variable in line
        assert each.default is None or each.default in line


@pytest.mark.parametrize(("command", "settings", "flags"), PROCESSES)
def test_options_of_a_process_are_handed_on_as_they_were_given(
    command: str, settings: type[SharedSettings], flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _, arguments: called.append(arguments))
    given = [word for each in described(settings, flags) for word in (each.flag, "no such value")]

    CliRunner().invoke(cli.app, [command, "--config", "a.yaml", "--check-config", *given])

    (arguments,) = called
    assert arguments[1:] == ["-m", f"fairlane.{command}", "--config", "a.yaml", "--check-config", *given]


@pytest.mark.parametrize("content", ["{", "\x00", "- 1"])
def test_a_settings_file_that_is_none_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fairlane.yaml").write_text(content)

    done = CliRunner().invoke(cli.app, ["tenants", "list"])

    (line,) = done.stderr.splitlines()
    assert done.exit_code == 1
    assert "fairlane.yaml" in line


SHOWS = {"list", "ls", "show", "why", "explain", "compare", "lanes", "audit", "doctor"}
"""Names of commands that list or show something."""


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below a group, with the words that call it."""
    for name in group.list_commands(typer.Context(group)):
        found = group.get_command(typer.Context(group), name)
        if isinstance(found, TyperGroup):
            yield from commands(found, (*words, name))
        else:
            yield (*words, name), found


def test_whatever_lists_or_shows_takes_output() -> None:
    found = dict(commands(typer.main.get_command(cli.app)))
    options = {words: {name for field in command.params for name in field.opts} for words, command in found.items()}

    assert len([words for words in found if words[-1] in SHOWS]) >= 14
    assert not [words for words in found if words[-1] in SHOWS and not {"-o", "--output"} <= options[words]]


def test_every_command_says_what_it_does() -> None:
    assert not [words for words, command in commands(typer.main.get_command(cli.app)) if not command.help]


def test_every_command_is_in_the_documents() -> None:
    documents = "".join(page.read_text() for page in (Path(cli.__file__).parents[2] / "docs").glob("*.md"))

    assert not [words for words in MODULES if f"fairlane {words}" not in documents]
