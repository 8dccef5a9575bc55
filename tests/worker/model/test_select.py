"""The fused model serves where it is proven; in all other cases the reference does, and one log line says why."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
import transformers

from fairlane.worker.attention.backends import BACKENDS
from fairlane.worker.attention.base import Metadata
from fairlane.worker.attention.gather import SdpaGather
from fairlane.worker.model import fused, select
from fairlane.worker.model import native as native_model
from fairlane.worker.model import reference as model
from fairlane.worker.model.files import ModelFiles, resolve
from fairlane.worker.model.fused import FusedModel, Linear, Norm, make_linear
from fairlane.worker.model.native import NativeModel, interleaved
from fairlane.worker.model.reference import TransformersModel
from fairlane.worker.model.select import build_fused, build_native, every_logit, load_fastest
from fairlane.worker.native.library import is_compiled, is_fastest
from tests.support.worker.random_models import GROUPED, SERVED, random_model
from tests.support.worker.tiny_model import write_tiny_model

needs_compiled = pytest.mark.skipif(
    not (is_fastest(torch.float32, 8, torch.device("cpu")) and is_fastest(torch.bfloat16, 8, torch.device("cpu"))),
    reason="torch's products are faster here, or there is no compiler",
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    directory = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    return resolve(str(directory), directory.parent)


class Doubling(SdpaGather):
    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv: torch.Tensor,
        metadata: Metadata,
        scaling: float,
    ) -> torch.Tensor:
        return super().attend(query, key, value, kv, metadata, 2 * scaling)


def perturbed(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    weight = weight.clone()
    weight[0] += weight.std()
    return make_linear(weight, bias)


def broken(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    return make_linear(weight.clone().fill_(float("nan")), bias)


def misshapen(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    return make_linear(weight[1:], None)


@pytest.fixture
def no_compiled_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "is_fastest", lambda *_: False)


@needs_compiled
def test_compiled_code_serves_the_family(files: ModelFiles) -> None:
    assert isinstance(load_fastest(files, dtype="float32", device="cpu"), NativeModel)


@pytest.fixture
def older_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not compute in bfloat16."""
    monkeypatch.setattr(model, "supports", lambda *_: False)


@needs_compiled
@pytest.mark.usefixtures("older_processor")
@pytest.mark.parametrize(("setting", "dtype"), [("auto", torch.bfloat16), ("float32", torch.float32)])
def test_older_processors_store_16_bits_unless_the_setting_is_float32(
    setting: str, dtype: torch.dtype, files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = watch_loads(monkeypatch)

    serving = load_fastest(files, dtype=setting, device="cpu")
    gc.collect()

    assert isinstance(serving, NativeModel)
    assert serving.shape.dtype == dtype
    assert serving.weight_bits == 8 * dtype.itemsize
    assert [reference() for reference in loaded if reference() is not None] == []


@needs_compiled
@pytest.mark.usefixtures("older_processor")
def test_16_bits_that_are_not_proven_yield_to_float32(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(select, "_COARSE_TOLERANCE", 1e-9)

    serving = load_fastest(files, device="cpu")

    assert isinstance(serving, NativeModel)
    assert serving.shape.dtype == torch.float32
    assert "its logits differ" in caplog.text


@pytest.mark.usefixtures("older_processor", "no_compiled_path")
def test_without_compiled_code_older_processors_keep_float32(files: ModelFiles) -> None:
    serving = load_fastest(files, device="cpu")

    assert isinstance(serving, FusedModel)
    assert serving.shape.dtype == torch.float32


@needs_compiled
@pytest.mark.parametrize("has_it", [True, False])
def test_weights_of_8_bits_serve_where_they_are_faster(
    has_it: bool, files: ModelFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(select, "has_int8", lambda: has_it)

    serving = load_fastest(files, dtype="int8", device="cpu")

    assert isinstance(serving, NativeModel)
    assert serving.shape.dtype == torch.bfloat16
    assert serving.weight_bits == (8 if has_it else 16)
    assert ("is not served with weights of 8 bits" in caplog.text) == (not has_it)


@needs_compiled
def test_weights_of_8_bits_that_are_not_proven_yield_to_those_of_16(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(select, "has_int8", lambda: True)
    monkeypatch.setattr(select, "INT8_TOLERANCE", 1e-9)

    serving = load_fastest(files, dtype="int8", device="cpu")

    assert isinstance(serving, NativeModel)
    assert serving.weight_bits == 16
    assert "its logits differ" in caplog.text


@pytest.mark.usefixtures("no_compiled_path")
def test_the_fused_model_serves_the_family_where_compiled_code_is_not_the_fastest(files: ModelFiles) -> None:
    assert isinstance(load_fastest(files, dtype="float32", device="cpu"), FusedModel)


@needs_compiled
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_compiled_code_with_wrong_weights_yields_to_the_fused_model(
    dtype: str, files: ModelFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def swapped(gate_up: torch.Tensor) -> torch.Tensor:
        return interleaved(gate_up).flip(0)

    monkeypatch.setattr(native_model, "interleaved", swapped)

    serving = load_fastest(files, dtype=dtype, device="cpu")

    assert isinstance(serving, FusedModel)
    assert "is not served by compiled code, slower: its logits differ" in caplog.text


@needs_compiled
def test_of_compiled_code_no_weights_are_held_twice(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = watch_loads(monkeypatch)

    serving = load_fastest(files, dtype="float32", device="cpu")
    gc.collect()

    assert isinstance(serving, NativeModel)
    assert [reference() for reference in loaded if reference() is not None] == []


def watch_loads(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[torch.Tensor]]:
    """The weights of whatever is loaded from now on: one that lives keeps the whole file in memory."""
    loaded: list[weakref.ref[torch.Tensor]] = []

    def load(*arguments: object, **others: object) -> TransformersModel:
        found = model.load(*arguments, **others)  # type: ignore[arg-type]
        loaded.extend(weakref.ref(parameter) for parameter in found.causal_lm.parameters())
        return found

    monkeypatch.setattr(select, "load", load)
    return loaded


@pytest.mark.usefixtures("no_compiled_path")
def test_the_references_weights_are_freed(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = watch_loads(monkeypatch)

    serving = load_fastest(files, dtype="float32", device="cpu")
    gc.collect()

    assert isinstance(serving, FusedModel)
    assert [reference() for reference in loaded if reference() is not None] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wrong", [perturbed, broken, misshapen])
def test_a_wrong_weight_makes_it_yield(
    wrong: object, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fused, "make_linear", wrong)

    assert build_fused(random_model(SERVED["llama"], dtype)) is None

    (record,) = (each for each in caplog.records if each.name == "fairlane.worker.model.select")
    assert record.getMessage().startswith("random is served by transformers' modules, slower: ")


def test_an_attention_that_computes_something_else_yields_to_the_reference_attention(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(BACKENDS, "cpu", Doubling())
    monkeypatch.setattr(select, "fastest_backends", lambda *_: ["cpu", "sdpa"])

    fused = build_fused(random_model(SERVED["llama"]))

    assert fused is not None
    assert fused.backend == "sdpa"
    assert "random is served with sdpa attention, slower: with cpu attention" in caplog.records[-1].getMessage()


def test_a_norm_that_scales_otherwise_makes_it_yield(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_norm", lambda module: Norm(1 + module.weight, 1e-6))

    assert build_fused(random_model(SERVED["llama"])) is None


@pytest.mark.parametrize("name", ["gemma", "phi3", "olmo2", "granite", "mixtral", "gpt2"])
def test_other_architectures_keep_the_reference(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert build_fused(random_model(SERVED[name])) is None

    assert "is not of the Llama family" in caplog.records[-1].getMessage()


def test_another_activation_keeps_the_reference(caplog: pytest.LogCaptureFixture) -> None:
    assert build_fused(random_model(transformers.LlamaConfig(**GROUPED, hidden_act="gelu"))) is None

    assert "activation gelu is not silu" in caplog.records[-1].getMessage()


def test_a_layer_with_an_unknown_part_keeps_the_reference(caplog: pytest.LogCaptureFixture) -> None:
    random = random_model(SERVED["llama"])
    random.causal_lm.model.layers[1].mlp.adapter = torch.nn.Linear(32, 32)

    assert build_fused(random) is None
    assert "LlamaMLP has an unknown adapter" in caplog.records[-1].getMessage()


class Adapted(torch.nn.Linear):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows) + rows.sum(-1, keepdim=True) * 1e-3


@pytest.mark.parametrize("path", [build_fused, lambda reference: build_native(reference, every_logit(reference))])
@pytest.mark.parametrize("place", ["self_attn.q_proj", "mlp.down_proj"])
def test_a_product_that_is_more_than_its_weight_keeps_the_reference(
    place: str, path: Callable[[TransformersModel], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it adds is less than the rounding of sixteen bits: the proof alone would let it pass."""
    monkeypatch.setattr(select, "is_fastest", lambda *_: is_compiled())
    random = random_model(SERVED["llama"], torch.bfloat16)
    random.causal_lm.get_submodule(f"model.layers.1.{place}").__class__ = Adapted

    assert path(random) is None


@pytest.mark.usefixtures("no_compiled_path")
def test_the_reference_serves_where_the_fused_model_yields(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "make_linear", perturbed)

    assert isinstance(load_fastest(files, dtype="float32", device="cpu"), TransformersModel)
