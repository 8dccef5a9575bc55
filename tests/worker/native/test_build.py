"""A source is compiled once; where it cannot be, the reason is one line and attention is torch's own."""

import os
from pathlib import Path

import pytest
import torch

from fairlane.worker.attention.backends import fastest_backends
from fairlane.worker.attention.cpu import serves
from fairlane.worker.kv.cache import KVShape
from fairlane.worker.native import library
from fairlane.worker.native.library import BuildError, load_library

SHAPE = KVShape(layers=1, kv_heads=2, head_dim=64, dtype=torch.float32)
CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(library.compiler() is None, reason="no compiler")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "answer.cpp"
    path.write_text('extern "C" int answer() { return 42; }')
    return path


@needs_compiler
def test_a_source_is_compiled_once(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_library(source, tmp_path / "cache").answer() == 42

    monkeypatch.setattr(library, "compiler", lambda: None)

    assert load_library(source, tmp_path / "cache").answer() == 42
    assert len(list((tmp_path / "cache").iterdir())) == 1


@needs_compiler
def test_a_changed_header_makes_another_library(source: Path, tmp_path: Path) -> None:
    header = tmp_path / "number.h"
    source.write_text('#include "number.h"\nextern "C" int answer() { return NUMBER; }')
    header.write_text("#define NUMBER 1")
    before = load_library(source, tmp_path / "cache").answer()

    header.write_text("#define NUMBER 2")

    assert (before, load_library(source, tmp_path / "cache").answer()) == (1, 2)


@needs_compiler
def test_a_wrong_source_is_an_error_of_one_line(source: Path, tmp_path: Path) -> None:
    source.write_text("nonsense")

    with pytest.raises(BuildError, match="error") as error:
        load_library(source, tmp_path / "cache")

    assert "\n" not in str(error.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_a_compiler_the_reason_says_so(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "compiler", lambda: None)

    with pytest.raises(BuildError, match="no C\\+\\+ compiler"):
        load_library(source, tmp_path / "cache")


def test_a_place_where_nothing_can_be_written_is_an_error(source: Path) -> None:
    with pytest.raises(BuildError, match="Not a directory"):
        load_library(source, source / "cache")


@needs_compiler
@pytest.mark.parametrize("left", [b"", b"nonsense"])
def test_what_cannot_be_loaded_is_compiled_anew(left: bytes, source: Path, tmp_path: Path) -> None:
    load_library(source, tmp_path / "elsewhere")
    (made,) = (tmp_path / "elsewhere").iterdir()
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o755)
    (cache / made.name).write_bytes(left)

    assert load_library(source, cache).answer() == 42


@needs_compiler
@pytest.mark.parametrize("name", [".", "planted.so"])
@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_what_others_may_write_is_not_loaded(name: str, mode: int, source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    load_library(source, cache)
    (made,) = cache.iterdir()
    (cache if name == "." else made).chmod(mode)

    with pytest.raises(BuildError, match="others may write"):
        load_library(source, cache)


@needs_compiler
def test_what_belongs_to_somebody_else_is_not_loaded(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_library(source, tmp_path / "cache")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:
        os.chown(tmp_path / "cache", 12345, -1)

    with pytest.raises(BuildError, match="another user"):
        load_library(source, tmp_path / "cache")


@needs_compiler
def test_nobody_else_may_write_where_libraries_are_kept(source: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        load_library(source, tmp_path / "cache")
    finally:
        os.umask(before)

    (made,) = (tmp_path / "cache").iterdir()
    assert [oct(path.stat().st_mode & 0o022) for path in (made.parent, made)] == ["0o0", "0o0"]


def test_without_the_kernel_the_reference_attention_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise BuildError("there is no C++ compiler")

    monkeypatch.setattr(library, "load_library", refuse)
    cached = (library.is_compiled, library.kernels)
    for function in cached:
        function.cache_clear()

    found = [*fastest_backends(SHAPE, CPU)]
    for function in cached:
        function.cache_clear()

    assert found == ["sdpa"]
    assert "there is no C++ compiler" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    ("head_dim", "dtype", "device"),
    [(72, torch.float32, "cpu"), (64, torch.float16, "cpu"), (64, torch.float32, "cuda")],
)
def test_what_the_kernel_does_not_know_is_left_to_the_reference(head_dim: int, dtype: torch.dtype, device: str) -> None:
    shape = KVShape(layers=1, kv_heads=2, head_dim=head_dim, dtype=dtype)

    assert not serves(shape, torch.device(device))
