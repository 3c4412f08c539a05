"""Webhook, policy, `/filter` and daemon judge a container's environment variables alike."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import celpy
import msgspec
import pytest
from celpy.adapter import json_to_cel
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceplugin.container.edits import AllocationSettings, HamiCore, container_edits, container_facts
from deviceplugin.container.limits import Backends, enforcement
from deviceplugin.container.own_variables import outdone, unreplaced
from deviceplugin.slots.slot import applied
from proto.admission import Json
from proto.environment import CHOOSING, lifting
from proto.kubernetes.objects import Container, EnvVar, Pod
from proto.kubernetes.wire import decode_object
from scheduler_ext.requests import RequestError, RequestSettings, read_request
from tests.daemonset.test_boundaries import policy
from tests.deviceplugin.gpus import INVENTORY, A, share
from tests.scheduler_ext.admission.pods import container, judged, pod
from tests.variables import (
    CHOOSES,
    CONTROL,
    HARMLESS,
    LIFTS,
    PRELOADS,
    TABLE,
    UNANSWERED,
    VISIBLE,
    elsewhere,
    empty,
    value,
)

EVERY = pytest.mark.parametrize(
    ("verdict", "env"), TABLE, ids=[" ".join(f"{e['name']}={e.get('value')}" for e in env) for _, env in TABLE]
)
HAMI_CORE = HamiCore(
    root="/usr/local", library="/usr/local/vgpu/libvgpu.so.v2", preload="/usr/local/vgpu/ld.so.preload"
)
PART = share(A)
WITHOUT_GPUS = pytest.mark.parametrize(("verdict", "env"), UNANSWERED)


def part(env: tuple[Json, ...]) -> Json:
    """A container that asks for a part of a GPU."""
    return container(gpu="1", gpumem="1000", gpucores="10") | {"env": list(env)}


def plain(env: tuple[Json, ...]) -> Json:
    """A container that asks for no GPU."""
    return container("plain") | {"env": list(env)}


PLACES = (pod, lambda one: pod(container(), init=(one,)))


@cache
def program(expression: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(expression))


@cache
def by_the_policy(validation: int) -> str:
    """What one of the policy's validations finds wrong with a container `c`."""
    expression = policy("bypass")["validations"][validation]["expression"]
    found = re.fullmatch(
        r"!(variables\.hasGpus \|\| !)?variables\.containers\.exists\(c, (.*)\)", expression, re.DOTALL
    )
    assert found
    return found[2]


def refused_by_the_policy(containers: Sequence[Json], validation: int) -> list[bool]:
    shown = json_to_cel(json.loads(json.dumps(containers)))
    answers = program(f"containers.map(c, {by_the_policy(validation)})").evaluate({"containers": shown})
    return [bool(answer) for answer in answers]


def by_filter(shown: Json) -> str:
    """`/filter`'s verdict on the variables of a pod with GPUs."""
    try:
        found = read_request(decode_object(Pod, json.dumps(shown).encode()), RequestSettings())
    except RequestError as error:
        return CHOOSES if error.key.startswith("env ") else error.key
    assert found is not None
    return LIFTS if any(need is not None and need.lifted_by for need in found.needs) else HARMLESS


@EVERY
def test_the_webhook_refuses_what_the_table_says(verdict: str, env: tuple[Json, ...]) -> None:
    for place in PLACES:
        assert judged(place(part(env))).allowed is (verdict == HARMLESS)
        assert judged(place(plain(env))).allowed is (verdict != CHOOSES)
        # A container without GPUs may not get past it either, beside one with GPUs.
        assert judged(pod(part(()), plain(env))).allowed is (verdict == HARMLESS)


@pytest.mark.parametrize(("validation", "verdicts"), [(0, {CHOOSES}), (1, {LIFTS, PRELOADS})])
def test_the_policy_refuses_what_the_table_says(validation: int, verdicts: set[str]) -> None:
    found = refused_by_the_policy([part(env) for _, env in TABLE], validation)
    assert found == [verdict in verdicts for verdict, _ in TABLE]


def test_the_policy_looks_at_every_container_and_at_limits_only_in_pods_with_gpus() -> None:
    chooses, lifts = (value(VISIBLE, "all"),), (value("LD_PRELOAD", "/x.so"),)
    for shown, expected in (
        (pod(part(())), (False, False)),
        (pod(part(()), plain(chooses)), (True, False)),
        (pod(part(()), init=(plain(lifts),)), (False, True)),
        (pod(plain(lifts)), (False, False)),
        (pod(plain(()), ephemeralContainers=[{"name": "d", "env": list(chooses)}]), (True, False)),
    ):
        spec = policy("bypass")
        activation: dict[str, Any] = {"object": json_to_cel(shown), "variables": celpy.celtypes.MapType()}
        for each in spec["variables"]:
            found = program(each["expression"]).evaluate(activation)
            activation["variables"][celpy.celtypes.StringType(each["name"])] = found
        allowed = [program(each["expression"]).evaluate(activation) for each in spec["validations"][:2]]
        assert tuple(not each for each in allowed) == expected


@EVERY
def test_filter_refuses_what_the_table_says(verdict: str, env: tuple[Json, ...]) -> None:
    expected = HARMLESS if verdict == PRELOADS else verdict
    assert by_filter(pod(part(env))) == by_filter(pod(part(()), init=(part(env),))) == expected
    assert by_filter(pod(part(()), plain(env))) == (CHOOSES if verdict == CHOOSES else HARMLESS)


@WITHOUT_GPUS
def test_an_image_s_version_of_cuda_shows_every_gpu_to_containers_that_get_none(
    verdict: str, env: tuple[Json, ...]
) -> None:
    without = (plain(env), part(env) | {"resources": {"limits": {"nvidia.com/gpu": "0"}}})
    for one in without:
        assert not judged(pod(one)).allowed
        assert by_filter(pod(part(()), one)) == verdict
    instance, no_instance = (
        plain(env) | {"resources": {"limits": {"nvidia.com/mig-1g.5gb": count}}} for count in ("1", "0")
    )
    assert judged(pod(part(env))).allowed
    assert judged(pod(instance)).allowed
    assert not judged(pod(no_instance)).allowed
    assert by_filter(pod(part(env))) == by_filter(pod(part(()), instance)) == HARMLESS
    assert refused_by_the_policy([*without, no_instance, part(env), instance], 0) == [True] * 3 + [False] * 2


def test_a_container_that_only_kubelet_would_not_give_gpus_is_not_answered() -> None:
    """It asks for memory alone: the webhook completes that to a GPU, but not for another scheduler's pod."""
    memory_alone = container(gpumem="1000", env={"CUDA_VERSION": "11.0"})
    assert judged(pod(memory_alone)).allowed
    assert not judged(pod(memory_alone, schedulerName="volcano")).allowed
    assert refused_by_the_policy([memory_alone], 0) == [True]
    assert judged(pod(plain((value("CUDA_VERSION", "11.0"),))), overwrite_env=True).allowed


def by_daemon(env: tuple[Json, ...], *, slot: bool) -> tuple[str, Mapping[str, str]]:
    """What the daemon says of a container with a part of a GPU, and the environment that it gives it."""
    container = Container(name="c", env=msgspec.convert(env, list[EnvVar]))
    facts = container_facts("uid", container, "nvidia.com/priority")
    edits = container_edits((PART,), INVENTORY, facts, AllocationSettings(), HAMI_CORE)
    answer = applied(edits).env if slot else edits.env
    judge = unreplaced if slot else outdone
    found = Backends(hami_core=HAMI_CORE)
    refused = enforcement((PART,), INVENTORY, facts, found).problem or judge("c", container.env, answer, limited=True)
    return refused, answer


@EVERY
def test_the_daemon_refuses_what_the_table_says_or_replaces_it(verdict: str, env: tuple[Json, ...]) -> None:
    at_once, _ = by_daemon(env, slot=False)
    by_slot, spec = by_daemon(env, slot=True)
    past = verdict in (CHOOSES, LIFTS)
    # One that hides its GPUs from itself is refused too: it would start without them.
    assert bool(at_once) == (past or any(each["name"] == VISIBLE for each in env))
    assert not by_slot if not past else by_slot or any(each["name"] in spec for each in env)


VARIABLES = st.one_of(
    st.builds(
        value,
        st.sampled_from([*CHOOSING, *lifting("default"), "CUDA_VERSION", "CUDA_DEVICE_SM_LIMIT_1", "LD_PRELOAD", "X"]),
        st.sampled_from(["all", "void", "none", "", "true", "false", "$(X)", "enabled", "disabled", "PCI_BUS_ID"]),
    ),
    st.builds(elsewhere, st.sampled_from([VISIBLE, CONTROL, "NVIDIA_GDS", "CUDA_VERSION"])),
    st.builds(empty, st.sampled_from([VISIBLE, CONTROL, "CUDA_VERSION"])),
)
ENVIRONMENTS = st.lists(VARIABLES, max_size=5).map(tuple)


@settings(max_examples=8, deadline=None)
@given(st.lists(ENVIRONMENTS, min_size=4, max_size=4))
def test_webhook_and_policy_agree_about_every_environment(environments: list[tuple[Json, ...]]) -> None:
    with_gpus, without = [part(env) for env in environments], [plain(env) for env in environments]
    chooses, lifts = (refused_by_the_policy([*with_gpus, *without], validation) for validation in (0, 1))
    assert [not judged(pod(one)).allowed for one in without] == chooses[4:]
    assert [not judged(pod(one)).allowed for one in with_gpus] == [a or b for a, b in zip(chooses, lifts, strict=True)][
        :4
    ]


@given(ENVIRONMENTS)
def test_webhook_and_filter_agree_about_every_environment(env: tuple[Json, ...]) -> None:
    without_preload = tuple(each for each in env if not each["name"].startswith("LD_"))
    shown = pod(part(without_preload))
    assert judged(shown).allowed is (by_filter(shown) == HARMLESS)


@given(ENVIRONMENTS)
def test_webhook_and_daemon_agree_about_every_environment(env: tuple[Json, ...]) -> None:
    without_preload = tuple(each for each in env if not each["name"].startswith("LD_"))
    allowed = judged(pod(part(without_preload))).allowed
    at_once, answer = by_daemon(without_preload, slot=False)
    by_slot, spec = by_daemon(without_preload, slot=True)
    assert at_once or allowed
    if allowed:
        assert not by_slot
        assert not at_once or answer.keys() & {each["name"] for each in env}
    if not by_slot:
        own = tuple(each for each in without_preload if each["name"] not in spec)
        assert judged(pod(part(own))).allowed
