"""GPUs that are not real are marked wherever they are seen. The daemon knows them by their library alone."""

import pytest

from proto.annotations.keys import NODE_SIMULATED
from tests.deviceplugin.daemon_rig import daemon
from tests.polling import until

pytestmark = pytest.mark.needs_compiler


async def test_the_node_its_events_the_log_and_the_metrics_say_that_the_gpus_are_simulated() -> None:
    async with daemon() as node:
        assert node.annotation(NODE_SIMULATED) == "true"
        assert node.said("the GPUs of this node are simulated: pods get no real GPU")
        await until(lambda: node.events("GPUsSimulated"))
        await until(lambda: node.counts("topogpu_gpus_simulated"))
