import pytest

from fairlane.common.settings_error import SettingsError
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.worker.vllm.settings import read_settings


def test_without_a_word_the_lanes_are_as_everywhere() -> None:
    assert read_settings({}, {}).lanes.lanes() == DEFAULT_LANES


def test_vllms_configuration_may_change_a_lane_and_the_environment_wins() -> None:
    said = {"fairlane": {"lanes": {"throughput": {"share_floor": 0.1, "ttft_s": 60}}}}
    environ = {"FAIRLANE_LANES__THROUGHPUT__SHARE_FLOOR": "0.2", "VLLM_CPU_KVCACHE_SPACE": "2"}

    lane = read_settings(said, environ).lanes.lanes()[LaneName.THROUGHPUT]

    assert (lane.share_floor, lane.ttft_ms) == (0.2, 60_000.0)


@pytest.mark.parametrize("said", [{"lanes": {"throughput": {"share": 0.1}}}, {"lane": {}}])
def test_an_unknown_setting_is_refused_by_name(said: object) -> None:
    with pytest.raises(SettingsError, match="no such setting"):
        read_settings({"fairlane": said}, {})


def test_a_configuration_of_another_kind_says_nothing() -> None:
    assert read_settings(object(), {}).lanes.lanes() == DEFAULT_LANES
