"""HAMi's device-config.yaml means the same to both programs."""

from typing import Any

import pytest

from deviceplugin.configuration.table import TABLE as DAEMON
from program.settings.declared import Table
from program.settings.effective import ConfigurationError, File, SettingSources, resolve
from program.settings.hami import DEVICE_CONFIG, NODE_CONFIG
from scheduler_ext.configuration import TABLE as EXTENDER

both = pytest.mark.parametrize("table", [DAEMON, EXTENDER], ids=["daemon", "extender"])


def warnings(table: Table[Any], text: str) -> tuple[str, ...]:
    environment = {"NODE_NAME": "n"}
    return resolve(
        table, SettingSources(flags={}, environment=environment, device_config=File(name="f", text=text))
    ).warnings


@both
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nvidia: {defaultMemory: 1}\nnvidia: {}", "f: line 2, column 1: not YAML: nvidia is written twice"),
        ("nvidia: {defaultMemory: 1, defaultMemory: 2}", "f: line 1, column 28: not YAML: defaultMemory is written"),
        ("nvidia: [", "f: line 1, column 10: not YAML: "),
        ("nvidia: 7", "f: nvidia is 7; expected keys with values"),
        ("amd: {}", "f: has no section nvidia, flags or imex; is it HAMi's device-config.yaml?"),
        ("", "f: has no section nvidia, flags or imex; is it HAMi's device-config.yaml?"),
        ("log_level: info", "f is this program's own configuration, not HAMi's: give it as --config"),
        ("nvidia: {resourceCountName: gpu}", "f: nvidia.resourceCountName is 'gpu'; expected a resource name such as"),
    ],
)
def test_both_refuse_the_same(table: Table[Any], text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        warnings(table, text)
    assert str(refusal.value).startswith(sentence)


@both
def test_both_warn_of_the_same(table: Table[Any]) -> None:
    text = "nvida: {}\nnvidia: {defaultMem: 5, resourceCoreName: ''}\nflags: {plugin: {zzz: 1}}"
    assert warnings(table, text) == (
        "f: nvida is known neither to HAMi nor here; did you mean nvidia?",
        "f: nvidia.defaultMem is known neither to HAMi nor here; did you mean defaultMemory?",
        "f: nvidia.resourceCoreName is '', which HAMi takes as not written, and so does this program",
        "f: flags.plugin.zzz is known neither to HAMi nor here",
    )


@both
def test_every_place_that_a_setting_names_is_one_that_hami_has(table: Table[Any]) -> None:
    for setting in table.settings.values():
        for place, known in ((setting.device_config, DEVICE_CONFIG), (setting.node_config, NODE_CONFIG)):
            section, _, key = place.rpartition(".")
            assert not place or key in known[section], place
