"""Dockerfiles read, and their steps replayed in a plain directory, since no test has a builder of images.

The subset that ours use: FROM, ARG, ENV, LABEL, COPY, RUN, USER, HEALTHCHECK, ENTRYPOINT. Each stage is a directory;
the image's paths that steps name are moved into it. What needs root or a distribution (`apt-get`, `useradd`, `install`)
is a stand-in that notes how it was called; so is pip, unless packages are wanted from the network.
"""

import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

KNOWN = {"ARG", "COPY", "ENTRYPOINT", "ENV", "FROM", "HEALTHCHECK", "LABEL", "RUN", "USER"}
PLACES = ("/opt/fairlane", "/src", "/var/lib")
"""Paths of the image that steps name: a step that names another one would act on this machine."""
STAND_INS = {
    "apt-get": "",
    "useradd": "",
    "install": """\
while [ "${1#--}" != "$1" ]; do
    case "$1" in --owner|--group|--mode) shift ;; esac
    shift
done
mkdir -p "$@"
""",
}
RUN_LIMIT_S = 1_500
PYTHON = """\
if [ "$1 $2" = "-m venv" ]; then
    {python} -m venv --without-pip "$3"
    cp "{pip}" "$3/bin/pip"
    echo "{packages}" >"$(echo "$3"/lib/python3*/site-packages)/dependencies.pth"
else
    exec {python} "$@"
fi
"""
"""A virtual environment that finds in this one what its pip leaves out."""
PIP = """\
for each; do source="$each"; done
case "$source" in
    */src*) exec {python} -m pip install --quiet --no-deps --no-build-isolation --no-index --no-compile \\
        --target "$(echo "$(dirname "$0")"/../lib/python3*/site-packages)" "${{source%%[[]*}}" ;;
esac
"""
"""It installs what was copied, and nothing else."""


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """The instructions with their arguments, continued lines joined, comments left out."""
    lines = [line for line in dockerfile.read_text().splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in joined.splitlines()]


@dataclass
class Replay:
    """One Dockerfile, replayed under `place`. `arguments`: of the build."""

    dockerfile: Path
    context: Path
    place: Path
    arguments: Mapping[str, str] = field(default_factory=dict)
    has_network: bool = False
    root: Path = Path()
    """The directory of the last stage."""

    def run(self) -> Path:
        """All steps; the root of the last stage. Raises CalledProcessError where a step fails."""
        self._given: dict[str, str] = {}
        for name, argument in instructions(self.dockerfile):
            if name not in KNOWN:
                raise ValueError(f"{self.dockerfile}: no test knows how to replay {name}")
            step = getattr(self, f"_{name.lower()}", None)
            if step is not None:
                step(argument)
        return self.root

    @property
    def calls(self) -> str:
        """How the stand-ins were called, in all stages."""
        return "".join(path.read_text() for path in sorted(self.place.glob("*/calls")))

    def _from(self, argument: str) -> None:
        self.root = self.place / (argument.split(" AS ")[1] if " AS " in argument else "final")
        (self.root / "stand-ins").mkdir(parents=True)
        bodies = dict(STAND_INS)
        if self.has_network:
            bodies["python"] = f'exec {sys.executable} "$@"'
        else:
            pip = self.root / "stand-ins/pip"
            bodies["pip"] = PIP.format(python=sys.executable)
            bodies["python"] = PYTHON.format(python=sys.executable, pip=pip, packages=sysconfig.get_path("purelib"))
        for name, body in bodies.items():
            script = self.root / "stand-ins" / name
            script.write_text(f'#!/bin/sh\necho {name} "$@" >>"{self.root}/calls"\n{body}\n')
            script.chmod(0o755)
        self._given = {}

    def _arg(self, argument: str) -> None:
        name, _, default = argument.partition("=")
        self._given[name] = self.arguments.get(name, default)

    def _copy(self, argument: str) -> None:
        *options, source, target = shlex.split(argument)
        if options:
            taken = self.place / options[0].removeprefix("--from=")
            shutil.copytree(f"{taken}{source}", f"{self.root}{target}", symlinks=True)
        else:
            copy_context(self.context, Path(f"{self.root}{target}"))

    def _run(self, argument: str) -> None:
        for place in PLACES:
            argument = argument.replace(place, f"{self.root}{place}")
        environ = {"PATH": f"{self.root}/stand-ins:/usr/bin:/bin", "HOME": str(self.root), **self._given}
        subprocess.run(["sh", "-ec", argument], env=environ, cwd=self.root, check=True, timeout=RUN_LIMIT_S)


def copy_context(context: Path, target: Path) -> None:
    """What `.dockerignore` lets into an image, of a clone's files."""
    rules = [line for line in (context / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    copy_tracked(context, target, lambda name: is_let_in(name, rules))


def copy_tracked(root: Path, target: Path, is_wanted: Callable[[str], bool] = bool) -> None:
    """The files that git knows or would add: a working tree has more than a clone."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for name in listed:
        if is_wanted(name) and os.path.lexists(root / name):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name, follow_symlinks=False)


def is_let_in(name: str, rules: list[str]) -> bool:
    """By the last rule that a file or one of its folders meets, as docker reads them."""
    let_in, parts = True, name.split("/")
    for rule in rules:
        pattern = rule.removeprefix("!")
        if any(
            fnmatch.fnmatchcase("/".join(parts[:depth]), pattern)
            or (pattern.startswith("**/") and fnmatch.fnmatchcase(parts[depth - 1], pattern[3:]))
            for depth in range(1, len(parts) + 1)
        ):
            let_in = rule.startswith("!")
    return let_in
