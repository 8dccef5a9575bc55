import pytest

from fairlane.worker.vllm import UnsupportedVllm, require_supported


@pytest.mark.parametrize("version", ["0.32.0", "0.32.7", "v0.32.1", "0.32.0rc1", "0.32.0+cpu"])
def test_a_supported_minor_version_passes(version: str) -> None:
    require_supported(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "0.320.0", "1.0", "dev", ""])
def test_any_other_is_refused_in_one_sentence(version: str) -> None:
    with pytest.raises(UnsupportedVllm, match=r"^LaneScheduler supports vLLM 0\.32, not .*\.$"):
        require_supported(version)
