"""A source is compiled once; where it cannot be, the reason is one line and attention is torch's own."""

from pathlib import Path

import pytest
import torch

from worker.attention import build, cpu, fastest_backends
from worker.attention.build import BuildError, load_library
from worker.kv_cache import KVShape

SHAPE = KVShape(layers=1, kv_heads=2, head_dim=64, dtype=torch.float32)
CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(build.compiler() is None, reason="no compiler")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "answer.cpp"
    path.write_text('extern "C" int answer() { return 42; }')
    return path


@needs_compiler
def test_a_source_is_compiled_once(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_library(source, tmp_path / "cache").answer() == 42

    monkeypatch.setattr(build, "compiler", lambda: None)

    assert load_library(source, tmp_path / "cache").answer() == 42
    assert len(list((tmp_path / "cache").iterdir())) == 1


@needs_compiler
def test_a_wrong_source_is_an_error_of_one_line(source: Path, tmp_path: Path) -> None:
    source.write_text("nonsense")

    with pytest.raises(BuildError, match="error") as error:
        load_library(source, tmp_path / "cache")

    assert "\n" not in str(error.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_a_compiler_the_reason_says_so(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compiler", lambda: None)

    with pytest.raises(BuildError, match="no C\\+\\+ compiler"):
        load_library(source, tmp_path / "cache")


def test_a_place_where_nothing_can_be_written_is_an_error(source: Path) -> None:
    with pytest.raises(BuildError, match="Not a directory"):
        load_library(source, source / "cache")


def test_without_the_kernel_the_reference_attention_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise BuildError("there is no C++ compiler")

    monkeypatch.setattr(cpu, "load_library", refuse)
    cpu.is_compiled.cache_clear()
    cpu._kernels.cache_clear()

    found = fastest_backends(SHAPE, CPU)
    cpu.is_compiled.cache_clear()

    assert found == ["sdpa"]
    assert "there is no C++ compiler" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    ("head_dim", "dtype", "device"),
    [(72, torch.float32, "cpu"), (64, torch.float16, "cpu"), (64, torch.float32, "cuda")],
)
def test_what_the_kernel_does_not_know_is_left_to_the_reference(head_dim: int, dtype: torch.dtype, device: str) -> None:
    shape = KVShape(layers=1, kv_heads=2, head_dim=head_dim, dtype=dtype)

    assert not cpu.serves(shape, torch.device(device))
