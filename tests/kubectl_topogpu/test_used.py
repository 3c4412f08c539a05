from kubectl_topogpu.used import Readings, Used, joined, read_page
from proto.devices import DeviceUUID

PAGE = """\
# HELP hami_vgpu_memory_used_bytes GPU memory
hami_vgpu_memory_used_bytes{namespace="ml",pod="a",container="x",device_uuid="GPU-1",zone="vGPU"} 1.048576e+09
hami_vgpu_memory_used_bytes{namespace="ml",pod="a",container="y",device_uuid="GPU-1",zone="vGPU"} 1.048576e+09
hami_container_device_utilization_ratio{namespace="ml",pod="a",container="x",device_uuid="GPU-1"} 12.4
hami_vgpu_memory_used_bytes{namespace="ml",pod="b",container="x",device_uuid="GPU-1"} NaN
hami_host_gpu_memory_used_bytes{node="n",device_index="0",device_uuid="GPU-1",device_type="a \\"b\\" c"} 3.145728e+09
hami_host_gpu_utilization_ratio{node="n",device_index="0",device_uuid="GPU-1",device_type="T"} 80
hami_host_gpu_memory_used_bytes{node="n",device_uuid="GPU-2"} -1
hami_host_gpu_memory_used_bytes{node="n",device_uuid="GPU-2"} 1.7e308
hami_host_gpu_memory_used_bytes{node="n",device_uuid="GPU-2"} 1.7e308
hami_host_gpu_memory_used_bytes_more{device_uuid="GPU-3"} 1
hami_host_gpu_memory_used_bytes garbage
hami_host_gpu_memory_used_bytes{node="n",device_uuid="GPU-of-another-node"} 1
"""
OWN = {DeviceUUID("GPU-1"), DeviceUUID("GPU-2"), DeviceUUID("GPU-3")}


def test_a_page_tells_what_pods_and_gpus_use_and_leaves_out_what_is_no_amount() -> None:
    gpu = DeviceUUID("GPU-1")
    assert read_page(PAGE, OWN) == Readings(
        gpus={gpu: Used(memory_mib=3000, cores_percent=80)},
        pods={("ml/a", gpu): Used(memory_mib=2000, cores_percent=12)},
    )


def test_readings_of_several_nodes_are_joined() -> None:
    gpu = DeviceUUID("GPU-1")
    missing = Readings(missing={"n2": "refused"})
    found = joined([read_page(PAGE, OWN), missing])
    assert found.gpus[gpu].memory_mib == 3000
    assert found.missing == {"n2": "refused"}


def test_a_line_made_to_take_long_is_left_out() -> None:
    line = f"hami_host_gpu_memory_used_bytes{{{'a' * 10**6}}} 1\n"
    assert read_page(line + PAGE, OWN) == read_page(PAGE, OWN)
