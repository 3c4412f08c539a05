import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deviceplugin.configuration.table import TABLE, Configuration, conflicts
from deviceplugin.settings import Remedy
from program.address import ListenAddress
from program.settings.effective import (
    ConfigurationError,
    Effective,
    File,
    SettingSources,
    as_yaml,
    resolve,
)
from program.settings.kinds import Kind, Number, Parsed, Seconds, Several, Switch, Text, UnfitValue, Whole, Words
from tests.deviceplugin.configuration.written import refused, written

LADDER = {
    "own": "own.yaml: device_split_count",
    "device_config": "device.yaml: nvidia.deviceSplitCount",
    "node_config": "config.json: nodeconfig[0].devicesplitcount",
    "environment": "environment variable DEVICE_SPLIT_COUNT",
    "flags": "flag --device-split-count",
}
"""From the weakest source to the strongest, with the words of each for its value."""

SAYS: Mapping[str, Any] = {
    "own": "device_split_count: 2",
    "device_config": "nvidia: {deviceSplitCount: 3}",
    "node_config": '{"nodeconfig": [{"name": "n", "devicesplitcount": 4}]}',
    "environment": {"DEVICE_SPLIT_COUNT": "5"},
    "flags": {"device_split_count": "6"},
}


@pytest.mark.parametrize("strongest", range(len(LADDER)))
def test_each_source_overrides_all_weaker_ones(strongest: int) -> None:
    effective = written(**{name: SAYS[name] for name in list(LADDER)[: strongest + 1]})
    assert effective.configuration.sharing.split_count == strongest + 2
    assert effective.origins["device_split_count"] == list(LADDER.values())[strongest]


def test_what_nobody_wrote_has_its_default() -> None:
    effective = written()
    assert effective.configuration == TABLE.filled(node_name="n")
    assert {origin for key, origin in effective.origins.items() if key != "node_name"} == {"default"}


def test_a_flag_that_adds_a_feature_may_stand_before_the_list_of_features() -> None:
    before, after = {"pass_device_specs": "true", "features": "gds"}, {"features": "gds", "pass_device_specs": "true"}
    assert written(before).configuration == written(after).configuration
    assert written(before).configuration.features == ("gds", "device-files")


def test_an_empty_environment_variable_is_not_set_but_an_empty_flag_is() -> None:
    assert written(environment={"METRICS_BIND_ADDRESS": ""}).configuration.metrics_bind_address == ListenAddress(
        host=None, port=9394
    )
    assert written({"metrics_bind_address": ""}).configuration.metrics_bind_address is None


def test_of_two_variables_for_one_setting_the_first_counts() -> None:
    both = written(environment={"DEV_ROOT": "/ours", "NVIDIA_DEV_ROOT": "/theirs"})
    assert both.configuration.host.dev_root == "/ours"
    assert written(environment={"NVIDIA_DEV_ROOT": "/theirs"}).configuration.host.dev_root == "/theirs"


def test_driver_files_need_to_know_where_the_driver_is_and_stand_alone() -> None:
    assert refused({"device_list_strategy": "driver-files,envvar", "features": "imex,gds"}).splitlines() == [
        "device_list_strategy is driver-files, envvar; driver-files goes with no other",
        "device_list_strategy is driver-files, which needs driver_root: where the host has the NVIDIA driver",
        "features has gds, which needs NVIDIA's container toolkit; device_list_strategy is driver-files",
    ]
    assert written({"device_list_strategy": "driver-files", "driver_root": "/run/nvidia/driver"}).warnings == ()


def test_without_a_node_name_nothing_starts() -> None:
    with pytest.raises(Exception, match="the name of this node is missing: give --node-name or NODE_NAME"):
        resolve(TABLE, SettingSources(flags={}, environment={}))


def test_the_node_of_config_json_may_be_named_in_any_of_our_sources() -> None:
    entry = File(name="config.json", text='{"nodeconfig": [{"name": "m", "devicesplitcount": 4}]}')
    own = File(name="own.yaml", text="node_name: m")
    for sources in (
        SettingSources(flags={}, environment={}, own=own, node_config=entry),
        SettingSources(flags={}, environment={"NODE_NAME": "m"}, node_config=entry),
    ):
        assert resolve(TABLE, sources).configuration.sharing.split_count == 4


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ("devicesplitcount: 2", "own.yaml: devicesplitcount is not a setting; did you mean device_split_count?"),
        ("device-split-count: 2", "own.yaml: device-split-count is not a setting; did you mean device_split_count?"),
        ("log_lvl: info", "own.yaml: log_lvl is not a setting; did you mean log_level?"),
        ("zzz: 1", "own.yaml: zzz is not a setting"),
        ("device_split_count: 0", "own.yaml: device_split_count is 0; expected a whole number from 1 to 1000"),
        ("device_split_count: '2'", "own.yaml: device_split_count is '2'; expected a whole number from 1 to 1000"),
        ("device_split_count: true", "own.yaml: device_split_count is True; expected a whole number from 1 to 1000"),
        ("device_split_count:", "own.yaml: device_split_count is empty; expected a whole number from 1 to 1000"),
        (
            "device_memory_scaling: .nan",
            "own.yaml: device_memory_scaling is nan; expected a number above 0 and up to 100",
        ),
        ("read_seconds: -1", "own.yaml: read_seconds is -1; expected a number above 0 and up to 1000000"),
        ("disable_core_limit: 1", "own.yaml: disable_core_limit is 1; expected true or false"),
        ("mig_strategy: both", "own.yaml: mig_strategy is 'both'; expected none, single or mixed"),
        ("hami_handshake: 2.8", "own.yaml: hami_handshake is 2.8; expected off, 2.4, 2.7 or 2.9"),
        (
            "operating_mode: mig",
            "own.yaml: operating_mode is 'mig': this daemon does not create MIG devices on demand; "
            "to share MIG devices that exist already, set mig_strategy",
        ),
        ("filter_devices: [x y]", "own.yaml: filter_devices is ['x y']; expected a list, each the UUID or the index"),
        ("health_checks: [79, ecc]", "own.yaml: health_checks is [79, 'ecc']; expected a list, each an XID or all"),
        ("device_list_strategy: []", "own.yaml: device_list_strategy is []; expected a list, each envvar,"),
        ("hook_path: usr/local", "own.yaml: hook_path is 'usr/local'; expected an absolute path"),
        ("resource_name: gpu", "own.yaml: resource_name is 'gpu'; expected a resource name such as nvidia.com/gpu"),
        ("metrics_bind_address: '9394'", "own.yaml: metrics_bind_address is '9394'; expected host:port"),
        ("metrics_bind_address: ':99999'", "own.yaml: metrics_bind_address is ':99999'; expected host:port"),
        ("nvidia: {deviceSplitCount: 2}", "own.yaml is HAMi's device-config.yaml: give it as --device-config-file"),
        ("log_level: [", "own.yaml: line 1, column 13: not YAML: "),
        ("log_level: info\nlog_level: debug", "own.yaml: line 2, column 1: not YAML: log_level is written twice"),
        ("- node_name", "own.yaml: expected keys with values, found list"),
        ("\x01", "own.yaml: not YAML: "),
    ],
)
def test_a_mistake_in_our_own_file_is_named_with_place_value_and_remedy(own: str, sentence: str) -> None:
    assert refused(own=own).startswith(sentence)


def test_every_mistake_of_every_source_is_told_at_once_even_if_it_is_overridden() -> None:
    sentences = refused(
        {"device_split_count": "2"},
        {"LOG_LEVEL": "loud"},
        own="device_split_count: 0\nlog_lvl: info",
        node_config="[",
    )
    assert sentences.splitlines() == [
        "own.yaml: device_split_count is 0; expected a whole number from 1 to 1000",
        "own.yaml: log_lvl is not a setting; did you mean log_level?",
        "config.json: line 1, column 2: not JSON: Expecting value",
        "environment variable LOG_LEVEL is 'loud'; expected debug, info, warning or error",
    ]


def test_a_list_may_have_a_word_for_nothing() -> None:
    for nothing in ("off", "[]", "'off'"):
        assert written(own=f"remediation: {nothing}").configuration.remediation.remedies == ()
    for two in ("[evict, taint-any]", "evict,taint-any"):
        remedies = (Remedy.EVICT, Remedy.TAINT_ANY)
        assert written(own=f"remediation: {two}").configuration.remediation.remedies == remedies


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_a_switch_in_the_environment_is_read_as_go_reads_it(text: str) -> None:
    assert written(environment={"PASS_DEVICE_SPECS": text}).configuration.containers.pass_device_specs is True


def test_words_that_yaml_reads_as_something_else_are_still_those_words() -> None:
    read = written(own="hami_handshake: off\nlibcuda_log_level: 3\n").configuration
    assert (read.agent.hami_scheduler, read.containers.libcuda_log_level) == ("off", "3")
    assert written(own="hami_handshake: 2.9").configuration.agent.hami_scheduler == "2.9"


def test_a_very_long_value_is_shown_short() -> None:
    assert len(refused({"log_level": "x" * 10_000})) < 200
    assert "is too large to show;" in refused(own=f"device_split_count: 0x{'f' * 5000}")


@given(
    st.text() | st.sampled_from(["&a [*a]", "{[1]: 2}", "2030-13-45", "!!python/name:os.system", "1: 1", "<<: 1", "="])
)
def test_no_text_in_any_file_is_more_than_a_refusal(text: str) -> None:
    for nesting in (
        "{}",
        "filter_devices: {}",
        "nvidia: {}",
        '{{"nodeconfig": [{{"name": "n", "filterdevices": {}}}]}}',
    ):
        for place in ("own", "device_config", "node_config"):
            said: dict[str, Any] = {place: nesting.format(text)}
            with suppress(ConfigurationError):
                written(**said)


PRINTABLE = st.characters(codec="utf-8", exclude_categories=("C", "Zl", "Zp"))


def values(kind: Kind) -> st.SearchStrategy[Any]:
    """Everything of this kind."""
    strategies: dict[type, Callable[[Any], st.SearchStrategy[Any]]] = {
        Text: lambda text: st.from_regex(re.compile(text.pattern), fullmatch=True, alphabet=PRINTABLE),
        Words: lambda words: st.sampled_from(words.words).map(words.make),
        Whole: lambda whole: st.integers(whole.minimum, whole.maximum),
        Number: lambda number: st.floats(number.above or 0.0, number.maximum, exclude_min=number.above is not None),
        Switch: lambda _: st.booleans(),
        Several: lambda several: st.lists(values(several.of), min_size=several.at_least, max_size=4).map(tuple),
        Seconds: lambda seconds: values(Whole(minimum=1, maximum=int(seconds.of.maximum))).map(seconds.from_file),
        Parsed: lambda parsed: st.sampled_from([text for text in PARSED if read(parsed, text) is not UNREADABLE]).map(
            parsed.from_text
        ),
    }
    return strategies[type(kind)](kind)


PARSED = ("", ":1", "[::1]:9394", "node.example:80", "a/b", "topogpu-system/a.b-c", "GPU-1", "7", "-79", "-fabric")
UNREADABLE = object()


def read(kind: Kind, text: str) -> object:
    try:
        return kind.from_text(text)
    except UnfitValue:
        return UNREADABLE


RESOURCES = st.sampled_from(["nvidia.com/gpu", "a/b", "gpu.example.com/H100_80.gb"])
configurations = st.builds(
    TABLE.filled,
    **{key: values(setting.kind) for key, setting in TABLE.settings.items()}
    | {key: RESOURCES for key in TABLE.settings if key.startswith("resource_")}
    | {"node_name": st.sampled_from(["n", "1", "gpu-07.rack-3.example.com"])},
).filter(lambda configuration: not tuple(conflicts(configuration)))


@settings(max_examples=40)
@given(configurations)
@example(TABLE.filled(node_name="n", kubeconfig="/" + "long/" * 100))
def test_what_print_config_prints_is_read_back_as_the_same(configuration: Configuration) -> None:
    effective = Effective(configuration=configuration, origins=dict.fromkeys(TABLE.settings, "default"), warnings=())
    read = resolve(
        TABLE, SettingSources(flags={}, environment={}, own=File(name="own.yaml", text=as_yaml(TABLE, effective)))
    )
    assert read.configuration == configuration


def test_print_config_names_the_origin_of_every_setting_in_order() -> None:
    printed = as_yaml(TABLE, written({"hook_path": "/opt"}, {"LOG_LEVEL": "DEBUG"}, own="read_seconds: 5"))
    lines = dict(re.findall(r"^(\w+): .*? +# (.*)$", printed, re.MULTILINE))
    assert list(lines) == list(TABLE.settings)
    assert {key: origin for key, origin in lines.items() if origin != "default"} == {
        "node_name": "flag --node-name",
        "hook_path": "flag --hook-path",
        "log_level": "environment variable LOG_LEVEL",
        "read_seconds": "own.yaml: read_seconds",
    }
    assert yaml.safe_load(printed)["log_level"] == "debug"


@pytest.mark.parametrize("key", TABLE.settings)
def test_every_default_is_a_value_its_own_kind_accepts(key: str) -> None:
    setting = TABLE.settings[key]
    if key != "node_name":
        assert setting.kind.from_file(setting.kind.to_file(setting.default)) == setting.default
