"""The settings of media, from the environment."""

import pytest

from fairlane.common.settings_error import SettingsError
from fairlane.gateway.config import GatewaySettings
from fairlane.gateway.media.reader import Media, MediaLimits
from fairlane.scheduler.protocol.settings import load


def limits(environment: dict[str, str]) -> MediaLimits:
    return load(GatewaySettings, document=None, environ=environment).media_limits


def test_nothing_is_fetched_by_default() -> None:
    found = limits({})
    assert (found.hosts, found.networks.ranges) == ((), ())
    assert (found.max_bytes, found.max_media, found.max_pixels, found.timeout_s) == (20 * 2**20, 20, 50_000_000, 10.0)


def test_hosts_are_a_list_or_words_with_commas() -> None:
    given = "Images.example.com, *.example.org,http://10.0.0.7:9000, [2001:db8::1]:8443, *"
    found = limits({"FAIRLANE_GATEWAY__MEDIA_HOSTS": given, "FAIRLANE_GATEWAY__MEDIA_NETWORKS": "10.0.0.0/8"})
    assert found.hosts == (
        "images.example.com", "*.example.org", "http://10.0.0.7:9000", "[2001:db8::1]:8443", "*",
    )  # fmt: skip
    assert "10.1.2.3" in found.networks
    Media(found)


@pytest.mark.parametrize(
    "wrong",
    [
        "https://a.example/",
        "a.example/x",
        "ftp://a.example",
        "a.*.example",
        "u@a.example",
        "a.example:0",
        "a.example:65536",
        "ü.example",
    ],
)
def test_what_is_no_host_stops_the_start(wrong: str) -> None:
    with pytest.raises(SettingsError, match=r"gateway\.media_hosts"):
        limits({"FAIRLANE_GATEWAY__MEDIA_HOSTS": wrong})
