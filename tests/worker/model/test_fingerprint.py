"""Two models share a fingerprint exactly where they compute the same."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fairlane.worker.model.files import fingerprint, weights_digest
from fairlane.worker.model.reference import TransformersModel
from fairlane.worker.model.select import precision
from tests.support.worker.tiny_model import write_tiny_model

WEIGHTS, LAYER = "model.safetensors", "model.layers.0.mlp.up_proj.weight"
sizes = pytest.mark.parametrize("whole_bytes", [2**30, 0])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def other(model: Path, tmp_path: Path) -> Path:
    """The same model in another place."""
    return Path(shutil.copytree(model, tmp_path / "other"))


@sizes
def test_a_copy_has_the_same(model: Path, other: Path, whole_bytes: int) -> None:
    assert weights_digest(model, whole_bytes=whole_bytes) == weights_digest(other, whole_bytes=whole_bytes)


@sizes
def test_training_of_one_tensor_is_seen(model: Path, other: Path, whole_bytes: int) -> None:
    tensors = load_file(other / WEIGHTS)
    tensors[LAYER] += 0.01 * torch.randn(tensors[LAYER].shape, generator=torch.Generator().manual_seed(1))
    save_file(tensors, other / WEIGHTS, metadata={"format": "pt"})

    assert weights_digest(model, whole_bytes=whole_bytes) != weights_digest(other, whole_bytes=whole_bytes)


def test_of_small_weights_one_number_is_enough(model: Path, other: Path) -> None:
    tensors = load_file(other / WEIGHTS)
    tensors[LAYER][1, 1] += 1.0
    save_file(tensors, other / WEIGHTS, metadata={"format": "pt"})

    assert weights_digest(model) != weights_digest(other)


@pytest.mark.parametrize(
    ("changed", "is_seen"),
    [
        ({"rope_theta": 5e5}, True),
        ({"quantization_config": {"quant_method": "fp8"}}, True),
        ({"transformers_version": "0.0.1", "_name_or_path": "elsewhere"}, False),
    ],
)
def test_of_the_configuration_what_is_computed_counts(
    model: Path, other: Path, changed: dict[str, object], is_seen: bool
) -> None:
    document = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(document | changed))

    assert (weights_digest(model) != weights_digest(other)) is is_seen


def test_the_same_weights_in_another_type_are_another_model(tiny: TransformersModel) -> None:
    assert precision(tiny) == "torch.float32, weights of 32 bits"
    assert fingerprint("weights", precision(tiny)) != fingerprint("weights", "torch.bfloat16, weights of 16 bits")


def test_a_file_that_is_no_safetensors_file_is_refused(other: Path) -> None:
    (other / WEIGHTS).write_bytes(b"\xff" * 64)

    with pytest.raises(ValueError, match="longer than any"):
        weights_digest(other, whole_bytes=0)
