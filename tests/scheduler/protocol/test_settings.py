"""Settings are merged from three sources, checked once, and a bad one is named in one line."""

from typing import Annotated

import msgspec
import pytest

from fairlane.common.settings_error import SettingsError
from fairlane.scheduler.protocol.lanes import LATENCY, THROUGHPUT, LaneName
from fairlane.scheduler.protocol.settings import ByteSize, LanesSettings, SharedSettings, load


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kv_memory: ByteSize | None = None
    threads: Annotated[int, msgspec.Meta(ge=0)] = 0


class Settings(SharedSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    worker: Section = Section()


def loaded(document: object = None, **environ: str) -> Settings:
    return load(Settings, document=document, environ={f"FAIRLANE_{name}": value for name, value in environ.items()})


def test_nothing_said_gives_the_defaults() -> None:
    settings = loaded()

    assert (settings.host, settings.port, settings.redis_url) == ("127.0.0.1", 8000, None)
    assert settings.lanes.lanes() == {LaneName.LATENCY: LATENCY, LaneName.THROUGHPUT: THROUGHPUT}


def test_later_sources_win() -> None:
    document = {"port": 1, "host": "file", "model": "file"}
    environ = {"FAIRLANE_PORT": "2", "FAIRLANE_HOST": "environment"}

    settings = load(Settings, document=document, environ=environ, flags={"port": 3, "host": None})

    assert (settings.port, settings.host, settings.model) == (3, "environment", "file")


def test_levels_are_separated_by_two_underscores() -> None:
    settings = loaded(LANES__LATENCY__TTFT_S="0.5", WORKER__THREADS="4")

    assert settings.lanes.lanes()[LaneName.LATENCY].ttft_ms == 500.0
    assert settings.worker.threads == 4


def test_a_level_from_the_file_keeps_what_the_environment_does_not_name() -> None:
    settings = loaded({"worker": {"threads": 2}}, WORKER__KV_MEMORY="1GiB")

    assert settings.worker == Section(kv_memory=ByteSize(2**30), threads=2)


def test_the_file_is_not_changed_by_merging() -> None:
    document = {"worker": {"threads": 2}}
    loaded(document, WORKER__THREADS="4")

    assert document == {"worker": {"threads": 2}}


def test_an_empty_variable_is_as_none() -> None:
    assert loaded({"redis_url": "redis://x"}, REDIS_URL="").redis_url is None


def test_other_variables_are_not_settings() -> None:
    environ = {"PATH": "/bin", "FAIRLANE_CONFIG": "x.yaml", "FAIRLANE_TEST_REQUIRE_REDIS": "1"}

    assert load(Settings, document={}, environ=environ) == Settings()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512MiB", 512 * 2**20),
        ("4GiB", 4 * 2**30),
        ("1.5 GB", 1_500_000_000),
        ("1000000", 1_000_000),
        ("64k", 64_000),
        ("2Ti", 2**41),
        ("7B", 7),
    ],
)
def test_sizes_have_units(text: str, expected: int) -> None:
    assert loaded(WORKER__KV_MEMORY=text).worker.kv_memory == expected


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"PORT": "70000"}, "setting port: "),
        ({"PORT": "eighty"}, "setting port: "),
        ({"LEASE_S": "0"}, "setting lease_s: "),
        ({"LOG_LEVEL": "loud"}, "setting log_level: "),
        ({"LANES__LATENCY__SHARE_FLOOR": "2"}, "setting lanes.latency.share_floor: "),
        ({"LANES__LATENCY__TTFT_MS": "5"}, "setting lanes.latency.ttft_ms: no such setting"),
        ({"TYPO": "1"}, "setting typo: no such setting"),
        ({"WORKER__THREDS": "1"}, "setting worker.threds: no such setting"),
        ({"WORKER__KV_MEMORY": "lots"}, "setting worker.kv_memory: expected a size"),
        ({"WORKER__KV_MEMORY": "-1GiB"}, "setting worker.kv_memory: expected a size"),
        ({"PORT__X": "1"}, "setting port: "),
    ],
)
def test_a_bad_setting_is_named_in_one_line(environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        loaded(**environ)

    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_variable_below_a_plain_value_is_named() -> None:
    with pytest.raises(SettingsError, match="FAIRLANE_WORKER__THREADS__X"):
        loaded({"worker": {"threads": 1}}, WORKER__THREADS__X="1")


@pytest.mark.parametrize("document", [[], "port: 1", 5])
def test_a_file_that_is_no_mapping_is_refused(document: object) -> None:
    with pytest.raises(SettingsError, match="mapping"):
        loaded(document)


def test_each_process_ignores_the_others_section() -> None:
    assert loaded({"gateway": {"anything": ["goes"]}}).worker == Section()


def test_the_admin_key_is_never_shown() -> None:
    assert "s3cret" not in repr(loaded(ADMIN_KEY="s3cret" * 6))


@pytest.mark.parametrize("key", ["a", "k" * 31, "k" * 501, "a key with spaces in it 0123456789", "schlüssel" * 5])
def test_an_admin_key_that_can_be_guessed_or_never_be_sent_is_refused(key: str) -> None:
    with pytest.raises(
        SettingsError, match=r"^setting admin_key: must be 32 to 500 .*`openssl rand -hex 32` makes one$"
    ) as told:
        loaded(ADMIN_KEY=key)

    assert key == "a" or key not in str(told.value)


def test_an_admin_key_of_32_characters_is_taken() -> None:
    assert loaded(ADMIN_KEY="k" * 32).admin_key == "k" * 32


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("10.1.2.3", "http://10.1.2.3:9000"),
        ("0.0.0.0", "http://127.0.0.1:9000"),  # noqa: S104
        ("::", "http://[::1]:9000"),
        ("fd00::7", "http://[fd00::7]:9000"),
    ],
)
def test_a_gateway_is_found_whatever_it_listens_on(host: str, url: str) -> None:
    assert loaded(HOST=host, PORT="9000").url == url


def test_operators_may_change_a_lanes_figures_and_nothing_else() -> None:
    lanes = msgspec.convert({"throughput": {"max_wait_s": 60, "max_queued": 5}}, LanesSettings).lanes()

    changed = lanes[LaneName.THROUGHPUT]
    assert (changed.max_wait_ms, changed.max_queued) == (60_000.0, 5)
    assert (changed.ttft_ms, changed.rank) == (THROUGHPUT.ttft_ms, 1)
    assert lanes[LaneName.LATENCY] == LATENCY
