import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.usage.cgroups import CgroupOwner, owner_of

UID = "2f7b1a5e-93c4-4d0e-8a61-0c5d9e7f1b23"
UNDER = UID.replace("-", "_")
STATIC = "d39a2c5b7e8f4160a1b2c3d4e5f60718"
ID = "9c1e" * 16
INNER = "77aa" * 16
OURS = CgroupOwner(UID, ID)
SLICE = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice"


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        pytest.param(f"0::/kubepods/burstable/pod{UID}/{ID}\n", OURS, id="v2, cgroupfs"),
        pytest.param(f"0::/kubepods/pod{UID}/{ID}\n", OURS, id="v2, cgroupfs, guaranteed"),
        pytest.param(f"0::/{SLICE}/cri-containerd-{ID}.scope\n", OURS, id="v2, systemd, containerd"),
        pytest.param(f"0::/{SLICE}/crio-{ID}.scope\n", OURS, id="v2, systemd, CRI-O"),
        pytest.param(f"0::/{SLICE}/crio-{ID}.scope/container\n", OURS, id="v2, systemd, CRI-O with crun"),
        pytest.param(f"0::/{SLICE}/docker-{ID}.scope\n", OURS, id="v2, systemd, docker"),
        pytest.param(f"0::/kubepods/besteffort/pod{UID}/crio-{ID}\n", OURS, id="v2, cgroupfs, CRI-O"),
        pytest.param(f"0::/../../pod{UID}/{ID}\n", OURS, id="v2, seen from a private cgroup namespace"),
        pytest.param(
            f"0::/../../kubepods-besteffort-pod{UNDER}.slice/cri-containerd-{ID}.scope\n",
            OURS,
            id="v2, systemd, seen from a private cgroup namespace",
        ),
        pytest.param(
            f"0::/system.slice/containerd.service/kubepods-burstable-pod{UNDER}.slice:cri-containerd:{ID}\n",
            OURS,
            id="v2, kubelet on systemd and containerd on cgroupfs",
        ),
        pytest.param(
            f"12:pids:/kubepods/burstable/pod{UID}/{ID}\n11:memory:/kubepods/burstable/pod{UID}/{ID}\n0::/\n",
            OURS,
            id="v1, cgroupfs",
        ),
        pytest.param(
            f"3:rdma:/\n2:cpu,cpuacct:/{SLICE}/docker-{ID}.scope\n1:name=systemd:/{SLICE}/docker-{ID}.scope\n",
            OURS,
            id="v1, systemd, docker",
        ),
        pytest.param(
            f"4:memory:/docker/{INNER}/kubelet/kubepods/burstable/pod{UID}/{ID}\n", OURS, id="a node inside a container"
        ),
        pytest.param(
            f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDER}.slice/cri-containerd-{ID}.scope\n",
            OURS,
            id="a kubelet with a cgroup root",
        ),
        pytest.param(f"0::/kubepods/pod{UID}/{ID}/docker/{INNER}\n", OURS, id="a container inside the container"),
        pytest.param(f"0::/kubepods/pod{UID}/{ID}/system.slice/x.service\n", OURS, id="systemd inside the container"),
        pytest.param(f"0::/kubepods/pod{STATIC}/{ID}\n", CgroupOwner(STATIC, ID), id="a static pod"),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{STATIC}.slice/crio-{ID}.scope\n",
            CgroupOwner(STATIC, ID),
            id="a static pod under systemd",
        ),
        pytest.param("0::/\n", None, id="the root"),
        pytest.param("0::/user.slice/user-1000.slice/session-3.scope\n", None, id="somebody logged in"),
        pytest.param("0::/system.slice/kubelet.service\n", None, id="kubelet itself"),
        pytest.param(f"0::/system.slice/docker-{ID}.scope\n", None, id="a container of no pod"),
        pytest.param(f"0::/{SLICE}/crio-conmon-{ID}.scope\n", None, id="CRI-O's monitor of a container"),
        pytest.param(f"0::/kubepods/burstable/pod{UID}\n", None, id="a pod without container"),
        pytest.param(f"0::/kubepods/burstable/pod{UID}/{ID[:-1]}\n", None, id="a short id"),
        pytest.param("", None, id="nothing"),
        pytest.param("kubepods", None, id="no cgroup file at all"),
    ],
)
def test_a_cgroup_file_names_the_pods_container(text: str, owner: CgroupOwner | None) -> None:
    assert owner_of(text) == owner


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    assert owner_of(text) is None or UID
