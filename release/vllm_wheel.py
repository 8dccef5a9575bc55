"""The wheel of fairlane-vllm, for vLLM's environment: `python -m release.vllm_wheel DIRECTORY` builds it.

It has LaneScheduler and the modules that it imports, from the same sources and under the same names as in fairlane."""

import ast
import contextlib
import io
import json
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta

ROOT = Path(__file__).parents[1]
NAME, PLUGIN, PAGE = "fairlane-vllm", "fairlane.worker.vllm", "release/fairlane-vllm.md"
# Keys of fairlane's pyproject.toml that are kept.
KEPT = ("version", "requires-python", "license", "license-files", "authors", "urls")


def modules() -> dict[str, Path]:
    """Return the files of all modules that LaneScheduler imports, and of their packages, by name."""
    found: dict[str, Path] = {}
    left = [f"{PLUGIN}.{path.stem}" for path in _place(PLUGIN).glob("[!_]*.py")]
    while left:
        name = left.pop()
        path = _file(name)
        if path is not None and name not in found:
            found[name] = path
            every = ast.walk(ast.parse(path.read_text()))
            left += [name.rpartition(".")[0], *(one for node in every for one in _imported(node))]
    return dict(sorted(found.items()))


def requirements() -> list[str]:
    """Return fairlane's requirements that these modules import when they are loaded. vLLM itself is none."""
    tops = (node for path in modules().values() for node in ast.parse(path.read_text()).body)
    names = {name.partition(".")[0] for node in tops for name in _imported(node)}
    needed = names - sys.stdlib_module_names - {"fairlane", "vllm"}
    lines = {line.partition(">")[0].partition("[")[0]: line for line in _project()["dependencies"]}
    return [lines[name] for name in sorted(needed)]


def build(target: Path) -> Path:
    """Build the wheel in a directory, and return its file."""
    files, target = modules(), target.absolute()
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        stage = Path(directory)
        for path in (*files.values(), *map(ROOT.joinpath, _project()["license-files"])):
            copy = stage / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        shutil.copyfile(ROOT / PAGE, stage / "README.md")
        packages = [name for name, path in files.items() if path.name == "__init__.py"]
        (stage / "pyproject.toml").write_text(_document(packages))
        with contextlib.chdir(stage), contextlib.redirect_stdout(io.StringIO()):
            return target / str(build_meta.build_wheel(str(target)))


def _document(packages: list[str]) -> str:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = {key: value for key, value in pyproject["project"].items() if key in KEPT} | {
        "name": NAME,
        "description": "Fairlane's lanes, deadlines and fairness as a scheduler inside vLLM",
        "readme": "README.md",
        "dependencies": requirements(),
    }
    tool = {"setuptools": {"packages": packages}}
    document = {"build-system": pyproject["build-system"], "project": project, "tool": tool}
    return "".join(f"{key} = {_toml(value)}\n" for key, value in document.items())


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list) else json.dumps(value)


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (one.name for one in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{one.name}" for one in node.names)


def _place(name: str) -> Path:
    return ROOT.joinpath(*name.split("."))


def _file(name: str) -> Path | None:
    if not f"{name}.".startswith("fairlane."):
        return None
    place = _place(name)
    return next((path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()), None)


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
