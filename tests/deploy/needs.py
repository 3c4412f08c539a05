"""All that a whole cluster needs: found, or built once.

`python -m tests.deploy.needs [RELEASE]` builds what is missing.
"""

import sys
from dataclasses import dataclass

from daemonset import helm
from tests.cluster import binaries as control_plane
from tests.cluster.binaries import NOTHING_TO_BUILD_WITH, Binaries, BuildFailed, NoBinaries
from tests.deploy import binaries, images
from tests.deploy.binaries import DeployBinaries
from tests.node import binaries as node
from tests.node.binaries import NodeBinaries


@dataclass(frozen=True, slots=True)
class Needs:
    control_plane: Binaries
    node: NodeBinaries
    more: DeployBinaries


def find(release: str = "") -> Needs:
    """Raises NoBinaries."""
    lacking = images.missing()
    if lacking:
        raise NoBinaries(f"there is no {lacking[0]}: `make test-deploy` builds it as root, with buildah and mmdebstrap")
    try:
        helm.find()
    except helm.NoHelm as reason:
        raise NoBinaries(str(reason)) from None
    return Needs(control_plane.find(release), node.find(release), binaries.find(release))


def build(release: str = "") -> None:
    """Raises NoBinaries, BuildFailed."""
    try:
        for each in (control_plane, node, binaries):
            each.build(release)
        helm.build()
        images.build()
    except (helm.NoHelm, images.NoImage) as reason:
        raise NoBinaries(str(reason)) from None
    except helm.HelmBuildFailed as reason:
        raise BuildFailed(str(reason)) from None


if __name__ == "__main__":
    try:
        build(sys.argv[1] if len(sys.argv) > 1 else "")
    except BuildFailed as problem:
        raise SystemExit(f"{problem}.") from None
    except NoBinaries as problem:
        print(f"{problem}.", file=sys.stderr)
        raise SystemExit(NOTHING_TO_BUILD_WITH) from None
