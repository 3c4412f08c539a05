"""CSV files of pods and nodes, and what is said about bad ones."""

import pytest

from proto.annotations.keys import USE_GPU_TYPE
from scheduler_ext.requests import ResourceNames
from simulation.plan.traces import TraceError, read_nodes, read_pods

NAMES = ResourceNames()
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
)


def test_a_pod_of_openb_asks_for_a_percentage_of_each_gpu_and_lasts_as_long_as_it_did() -> None:
    rows = "a,6000,12288,1,460,V100M32|G2,LS,Running,10,110,10\nb,1000,2048,0,0,,BE,Running,0,,\n"
    shared, without = read_pods(OPENB + rows, "t.csv", NAMES)
    assert shared.spec.containers[0].resources.limits == {
        NAMES.count: "1",
        NAMES.memory_percentage: "46",
        "cpu": "6000m",
        "memory": "12288Mi",
    }
    assert shared.annotations == {USE_GPU_TYPE: "G2,V100M32"}
    assert (shared.at, shared.lasts) == (10.0, 100.0)
    assert without.spec.containers[0].resources.limits == {"cpu": "1000m", "memory": "2048Mi"}


def test_nodes_of_openb_have_their_gpus() -> None:
    cluster = read_nodes("sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,2,P100\nn2,1000,1024,0,\n", "n.csv")
    assert [node.metadata.name for node in cluster.nodes] == ["n1", "n2"]
    assert '"type":"NVIDIA P100"' in cluster.nodes[0].metadata.annotations["hami.io/node-nvidia-register"]
    assert cluster.nodes[1].metadata.annotations == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "t.csv: is empty; the first line names the columns"),
        ("name,cpu\na,1\n", "t.csv: row 1, column gpus: is missing; the columns are name, namespace, cpu_milli,"),
        ("name,gpus\na,one\n", "t.csv: row 2, column gpus: expected a whole number, found 'one'"),
        ("name,gpus\na,1\nb,-1\n", "t.csv: row 3, column gpus: expected a whole number, found '-1'"),
        ("name,gpus\n,1\n", "t.csv: row 2, column name: expected the name of a pod"),
        ('name,gpus\n"a,1\nb,1\n', "t.csv: row 2: unexpected end of data"),
        ("name,gpus,gpus\na,1,2\n", "t.csv: row 1, column gpus: is there twice"),
        ("name,gpus,gpu_mem\na,1,2\n", "t.csv: row 1, column gpu_mem: is unknown; the columns are name, namespace,"),
        ("name,gpus,\na,1,\n", "t.csv: row 1, column without a name: is unknown"),
        ("name,gpus\na,1,2\n", "t.csv: row 2: has 3 cells, and the first line names 2"),
        ("name,gpus,at_seconds\na,1,nan\n", "row 2, column at_seconds: expected a number of seconds, found 'nan'"),
        ("name,gpus,gpu_cores\na,1,101\n", "row 2, column gpu_cores: expected a whole number, found '101'"),
        (OPENB + "a,1,1,1,,,,,,,\n", "row 2, column gpu_milli: expected 1 to 1000 for a pod with 1 GPUs"),
        (f"name,gpus\n{'9' * 200000},1\n", "row 2: field larger than field limit"),
    ],
)
def test_a_bad_row_is_named_with_its_column(text: str, said: str) -> None:
    with pytest.raises(TraceError) as error:
        read_pods(text, "t.csv", NAMES)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("a,1,1,1,T4\na,1,1,1,T4\n", "n.csv: row 3, column sn: 'a' is listed twice"),
        ("a,1,1,65,T4\n", "n.csv: row 2, column gpu: expected a whole number, found '65'"),
        ("", "n.csv: lists no node"),
    ],
)
def test_a_bad_node_is_named(rows: str, said: str) -> None:
    with pytest.raises(TraceError) as error:
        read_nodes(f"sn,cpu_milli,memory_mib,gpu,model\n{rows}", "n.csv")
    assert said in str(error.value)
