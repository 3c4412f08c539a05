"""The parts of the official client that we use: configuration and credentials of its asyncio half.

Importing the package `kubernetes` also loads its synchronous half and much else: 10 MiB and a third of a second in
every process (measured with version 37). So its two parent packages are entered by path, without running their
`__init__`. If they are loaded already, they are used as they are. The class ApiClient, which the configuration readers
name and nothing here calls, would load pydantic: a tenth of the daemon's start.
"""

import sys
from importlib.util import find_spec, module_from_spec

for _package in ("kubernetes", "kubernetes.aio"):
    _spec = find_spec(_package)
    if _spec is not None and _package not in sys.modules:
        sys.modules[_package] = module_from_spec(_spec)

import kubernetes.aio.client as _client  # noqa: E402 - after the packages above
from kubernetes.aio.client.configuration import Configuration  # noqa: E402

_is_ours = "ApiClient" not in vars(_client)
if _is_ours:
    _client.ApiClient = None
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config  # noqa: E402

if _is_ours:
    del _client.ApiClient

__all__ = ["ConfigException", "Configuration", "load_incluster_config", "load_kube_config"]
