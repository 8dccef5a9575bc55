"""`fairlane completion`: what it prints makes a shell complete the commands."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlane.cli import main as cli

BASH = """
source "$1"
COMP_WORDS=({line})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_fairlane_completion fairlane
echo "${{COMPREPLY[@]}}"
"""
ZSH = """
compdef() {{ : }}
_arguments() {{ print -r -- "$@" | sed -nE 's/^[^"]*"([^"]*)".*/\\1/p' }}
source "$1"
words=({line})
CURRENT=${{#words}}
_fairlane_completion
"""
"""Zsh's own menu needs a terminal; here it prints what it is given to choose from."""
FISH = """
source $argv[1]
complete -C '{line}' | cut -f 1
"""
LINES = [
    ("fairlane ser", "serve"),
    ("fairlane tenants cre", "create"),
    ("fairlane comp", "completion"),
    ("fairlane workers list -o ya", "yaml"),
]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """With the command on it, of this interpreter and this code."""
    command = tmp_path / "fairlane"
    command.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'from fairlane.cli.main import main; main()' \"$@\"\n")
    command.chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


@pytest.mark.slow
@pytest.mark.parametrize(("line", "words"), LINES)
@pytest.mark.parametrize(
    ("shell", "ask"), [(["bash", "-c"], BASH), (["zsh", "-fc"], ZSH), (["fish", "--no-config", "-c"], FISH)]
)
def test_a_shell_completes_commands(
    tmp_path: Path, path: str, shell: list[str], ask: str, line: str, words: str
) -> None:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"needs {shell[0]}")
    script = tmp_path / "completion"
    script.write_text(CliRunner().invoke(cli.app, ["completion", shell[0]]).output)
    zeroth = [] if shell[0] == "fish" else [shell[0]]

    said = subprocess.run(
        [*shell, ask.format(line=line), *zeroth, str(script)],
        env={**os.environ, "PATH": path, "PYTHONPATH": str(Path(cli.__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert said.stdout.split() == words.split(), said.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_for_the_command(shell: str) -> None:
    done = CliRunner().invoke(cli.app, ["completion", shell])

    assert done.exit_code == 0
    assert f"_FAIRLANE_COMPLETE=complete_{shell}" in done.output


@pytest.mark.parametrize("command", ["tenants", "keys", "quotas", "usage", "workers", "simulate"])
def test_no_subcommand_offers_a_script_of_its_own(command: str) -> None:
    assert "completion" not in CliRunner().invoke(cli.app, [command, "--help"]).output
