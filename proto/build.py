"""Build information for `hami_build_info`. The image sets two variables: its commit, and the commit's time."""

import os
import platform
import sys
from collections.abc import Mapping

from proto import __version__

BUILD_LABELS = ("version", "revision", "build_date", "go_version", "compiler", "platform")
REVISION_VARIABLE = "TOPOGPU_REVISION"
DATE_VARIABLE = "TOPOGPU_BUILD_DATE"


def build_labels(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Returns values for BUILD_LABELS. The Python interpreter takes the place of the Go compiler. Outside the image,
    revision and date are empty.
    """
    compiler = f"{platform.python_implementation()} {platform.python_version()}"
    built = (environment.get(REVISION_VARIABLE, ""), environment.get(DATE_VARIABLE, ""))
    return (__version__, *built, "", compiler, f"{sys.platform}/{platform.machine()}")
