"""What the releases of kubelets and container runtimes do with CDI devices."""

import json

import pytest

from deviceplugin.runtimes import Runtime, doubt, enabled_cdi, why_no_cdi

MODERN = "v1.36.0"


@pytest.mark.parametrize("kubelet", ["v1.29.0", "v1.31.4+k3s1", "v1.30.2-eks-1552ad0"])
@pytest.mark.parametrize(
    "runtime",
    [
        "containerd://2.3.0-rc.1",
        "containerd://2.4.2",
        "cri-o://1.31.11",
        "cri-o://1.32.7",
        "cri-o://1.33.3-2.rhaos4.20",
        "cri-o://1.34.0",
        "cri-o://1.36.1",
        "cri-o://2.0.0",
    ],
)
def test_releases_that_apply_cdi_devices_last_or_refuse_the_container(kubelet: str, runtime: str) -> None:
    known = Runtime(kubelet=kubelet, runtime=runtime)
    assert (why_no_cdi(known), doubt(known)) == ("", None)


@pytest.mark.parametrize(
    "runtime", ["1.28.0", "1.28.11", "1.29.13", "1.30.14", "1.31.10", "1.31.0-dev", "1.32.6", "1.33.0", "1.33.2"]
)
def test_cri_o_that_lets_the_image_replace_what_the_slot_says_is_refused(runtime: str) -> None:
    assert why_no_cdi(Runtime(kubelet=MODERN, runtime=f"cri-o://{runtime}")) == (
        f"the container runtime is cri-o://{runtime}, which lets the environment of image and pod replace that of CDI "
        "devices; CRI-O 1.31.11, 1.32.7, 1.33.3 and 1.34 do not"
    )


@pytest.mark.parametrize(
    ("kubelet", "runtime", "why"),
    [
        ("", "containerd://2.4.2", "the Node does not report its kubelet's version"),
        ("v1.28.15", "containerd://2.4.2", "kubelet is v1.28.15, CDI devices need 1.29"),
        (MODERN, "", "the Node does not report its container runtime's version"),
        (
            MODERN,
            "containerd://1.6.9",
            "the container runtime is containerd://1.6.9, CDI devices need containerd 1.7",
        ),
        (MODERN, "cri-o://1.27.4", "the container runtime is cri-o://1.27.4, CDI devices need CRI-O 1.28"),
    ],
)
def test_releases_without_cdi_are_named(kubelet: str, runtime: str, why: str) -> None:
    assert why_no_cdi(Runtime(kubelet=kubelet, runtime=runtime)) == why


@pytest.mark.parametrize(
    ("version", "likely"), [("1.7.0", False), ("1.7.29-k3s1", False), ("2.0.0", True), ("2.2.9", True)]
)
def test_containerd_that_may_leave_cdi_devices_out_silently_has_to_be_asked(version: str, *, likely: bool) -> None:
    asked = [Runtime(kubelet=MODERN, runtime=f"containerd://{version}", enable_cdi=answer) for answer in (True, False)]
    silent = Runtime(kubelet=MODERN, runtime=f"containerd://{version}")
    assert why_no_cdi(silent) == ""
    found = doubt(silent)
    assert found is not None
    assert found.likely is likely
    assert "starts containers without their CDI devices" in found.clause
    assert [doubt(each) for each in asked] == [None, None]
    assert [why_no_cdi(each) for each in asked] == [
        "",
        f"the container runtime is containerd://{version} with enable_cdi = false in its configuration",
    ]


def test_a_switch_that_a_release_no_longer_has_says_nothing() -> None:
    assert why_no_cdi(Runtime(kubelet=MODERN, runtime="containerd://2.4.2", enable_cdi=False)) == ""
    assert why_no_cdi(Runtime(kubelet=MODERN, runtime="containerd://2.3.0", enable_cdi=False)) != ""


@pytest.mark.parametrize(
    ("config", "told"),
    [({"enableCDI": True}, True), ({"enableCDI": False, "x": [1]}, False), ({"enableCDI": None}, None), ({}, None)],
)
def test_a_runtimes_status_tells_its_switch(config: dict[str, object], *, told: bool | None) -> None:
    assert enabled_cdi({"config": json.dumps(config), "golang": "go1.26"}) is told


@pytest.mark.parametrize("text", ["", "{", "[]", '{"enableCDI": "yes"}', '{"a":' * 100_000])
def test_a_status_that_cannot_be_read_tells_nothing(text: str) -> None:
    assert enabled_cdi({"config": text}) is None
    assert enabled_cdi({}) is None
