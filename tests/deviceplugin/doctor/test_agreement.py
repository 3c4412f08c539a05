"""What `allocations` says of one container when one of the four sources says something else."""

from dataclasses import replace

import msgspec

from deviceplugin.container.cdi import SLOT_KIND, cdi_spec
from deviceplugin.container.edits import AllocationSettings, ContainerEdits, ContainerFacts, container_edits
from deviceplugin.doctor.agreement import Row, Sources, Verdict, Word, agreement
from deviceplugin.records.holdings import Holding, ListedContainer
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.devices import ContainerShares
from proto.kubernetes.objects import ContainerState, ContainerStatus, Pod
from tests.deviceplugin.gpus import INVENTORY, A, B, bound_pod, share
from tests.deviceplugin.slots.slot_rig import as_recorded

GPU = "nvidia.com/gpu"
X, Y = f"{A}-0", f"{B}-0"
ONE, TWO = (share(A),), (share(B, 2000, 20), share(A, 1000, 10))
AGREES, SILENT, UNKNOWN = Verdict(Word.AGREES), Verdict(Word.SILENT), Verdict(Word.UNKNOWN)


def recorded(pod: str, container: str, *ids: str, slot: str = "s") -> Holding:
    return Holding(
        pod_uid=f"uid-{pod}",
        container_name=container,
        resource_name=GPU,
        device_ids={"0": [*ids]},
        answer=as_recorded(slot),
    )


def listed(pod: str, container: str, *ids: str) -> ListedContainer:
    return ListedContainer(namespace="default", pod=pod, container=container, ids=frozenset(ids))


def spec(shares: ContainerShares, *, by_driver: bool = False) -> bytes:
    facts = ContainerFacts(pod_uid="u", name="c")
    limits = {each.uuid: each.memory_mib for each in shares} if by_driver else {}
    edits = container_edits(shares, INVENTORY, facts, AllocationSettings(), None, driver_mib=limits)
    return msgspec.json.encode(cdi_spec(SLOT_KIND, "s", edits))


def running(name: str, shares: tuple[ContainerShares, ...], *, init: int = 0) -> Pod:
    pod = bound_pod(name, shares, phase="Running", init=init)
    state = ContainerState(running={})
    pod.status.container_statuses = [ContainerStatus(name=each.name, state=state) for each in pod.spec.containers]
    return pod


ALL_AGREE = Sources(
    resource=GPU,
    by_slots=True,
    recorded=(recorded("p", "c0", X),),
    listed=(listed("p", "c0", X),),
    pods=(running("p", (ONE,)),),
    inventory=INVENTORY,
    spec=spec(ONE),
)


def only(sources: Sources) -> Row:
    (row,) = agreement(sources)
    return row


def test_a_container_whose_four_witnesses_agree() -> None:
    row = only(ALL_AGREE)
    assert row == Row(
        pod="default/p",
        container="c0",
        ids=(X,),
        slot="s",
        shares=ONE,
        checkpoint=AGREES,
        pod_resources=AGREES,
        annotation=AGREES,
        spec=AGREES,
    )
    assert row.agrees


def test_a_spec_with_other_limits_or_gpus_differs_and_says_how() -> None:
    raised = only(replace(ALL_AGREE, spec=spec((share(A, 9000),))))
    assert (raised.spec, raised.agrees) == (Verdict(Word.DIFFERS, "limits to 9000 MiB and 30 %"), False)
    assert only(replace(ALL_AGREE, spec=spec((share(B),)))).spec == Verdict(Word.DIFFERS, f"gives {B}")


def test_limits_are_compared_gpu_by_gpu_in_the_order_of_the_spec() -> None:
    several = replace(
        ALL_AGREE,
        recorded=(recorded("p", "c0", X, Y),),
        listed=(listed("p", "c0", X, Y),),
        pods=(running("p", (TWO,)),),
        spec=spec(TWO),
    )
    assert only(several).agrees
    assert only(replace(several, spec=spec(TWO, by_driver=True))).agrees
    swapped = spec((share(B, 1000, 10), share(A, 2000, 20)))
    assert only(replace(several, spec=swapped)).spec == Verdict(
        Word.DIFFERS, "limits to 2000 MiB and 20 %, 1000 MiB and 10 %"
    )


def test_a_whole_gpu_is_limited_to_its_memory() -> None:
    whole = (share(A, 0, 0),)
    assert only(replace(ALL_AGREE, pods=(running("p", (whole,)),), spec=spec(whole))).agrees


def test_a_spec_is_there_only_while_its_container_is_about_to_be_created() -> None:
    other = msgspec.json.encode(cdi_spec(SLOT_KIND, "other", ContainerEdits(env={})))
    assert [only(replace(ALL_AGREE, spec=text)).spec for text in (b"", other)] == [SILENT, SILENT]


def test_a_spec_that_cannot_be_read_differs() -> None:
    verdict = only(replace(ALL_AGREE, spec=b"{")).spec
    assert verdict.word is Word.DIFFERS
    assert verdict.difference.startswith("the slots' file is not a CDI specification")


def test_a_changed_annotation_differs_from_what_the_container_got() -> None:
    pod = running("p", (ONE,))
    pod.metadata.annotations[DEVICES_ALLOCATED] = "nonsense"
    row = only(replace(ALL_AGREE, pods=(pod,)))
    assert row.annotation.word is Word.DIFFERS
    assert DEVICES_ALLOCATED in row.annotation.difference
    assert only(replace(ALL_AGREE, pods=(running("p", (TWO,)),))).annotation.difference == "has 2 GPUs for 1 replicas"
    stranger = replace(ALL_AGREE, inventory={B: INVENTORY[B]})
    assert only(stranger).annotation.difference == f"names {A}, not a GPU of this node"


def test_kubelets_two_words_may_differ() -> None:
    assert only(replace(ALL_AGREE, listed=(listed("p", "c0", Y),))).pod_resources.difference == f"lists {Y}"
    assert only(replace(ALL_AGREE, listed=())).pod_resources.difference == "does not list it"
    assert only(replace(ALL_AGREE, recorded=())).checkpoint.difference == "has no entry"


def test_an_init_container_is_never_listed_and_has_a_slot_and_limits_of_its_own() -> None:
    init = (share(A, 9000, 10),)
    both = replace(
        ALL_AGREE,
        recorded=(recorded("p", "c0", X, slot="of-init"), recorded("p", "c1", X)),
        listed=(listed("p", "c1", X),),
        pods=(running("p", (init, ONE), init=1),),
    )
    first, second = agreement(both)
    assert (first.pod_resources, second.pod_resources) == (SILENT, AGREES)
    assert first.agrees
    assert second.agrees
    assert (first.slot, first.shares) == ("of-init", init)
    assert (second.slot, second.shares) == ("s", ONE)


def test_what_kubelet_still_records_of_ended_pods_is_left_out() -> None:
    ended = bound_pod("p", (ONE,), phase="Succeeded")
    assert agreement(replace(ALL_AGREE, pods=(ended,))) == ()
    assert agreement(replace(ALL_AGREE, pods=(), listed=())) == ()


def test_a_listed_pod_that_the_api_server_does_not_have_differs() -> None:
    row = only(replace(ALL_AGREE, recorded=None, pods=()))
    assert (row.pod, row.annotation.difference) == ("default/p", "the API server has no such pod here")


def test_a_source_that_cannot_be_read_neither_agrees_nor_differs() -> None:
    blind = only(replace(ALL_AGREE, recorded=None))
    assert (blind.checkpoint, blind.pod_resources, blind.annotation, blind.agrees) == (UNKNOWN, AGREES, AGREES, True)
    assert only(replace(ALL_AGREE, listed=None)).pod_resources == UNKNOWN
    assert only(replace(ALL_AGREE, spec=None)).spec == UNKNOWN
    alone = only(replace(ALL_AGREE, pods=None))
    assert (alone.pod, alone.annotation, alone.spec, alone.shares) == ("default/p", UNKNOWN, UNKNOWN, ())
    assert only(replace(ALL_AGREE, pods=None, listed=None)).pod == "UID uid-p"


def test_without_slots_there_is_none_and_no_spec_is_looked_for() -> None:
    entry = msgspec.structs.replace(recorded("p", "c0", X), answer="")
    row = only(replace(ALL_AGREE, by_slots=False, spec=None, recorded=(entry,)))
    assert (row.slot, row.spec, row.agrees) == ("", SILENT, True)


def test_other_resources_are_nobodys_business() -> None:
    entry = Holding(pod_uid="uid-p", container_name="c0", resource_name="example.com/nic", device_ids={"0": ["n"]})
    assert agreement(replace(ALL_AGREE, recorded=(entry,), listed=())) == ()
