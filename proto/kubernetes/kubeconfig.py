"""Finds the API server and our credentials: a kubeconfig, or the service account of a pod."""

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import yaml

from proto.kubernetes.errors import ApiServerUnconfigured
from proto.kubernetes.official import ConfigException, Configuration, load_incluster_config, load_kube_config

Configure = Callable[[], Awaitable[Any]]
"""Reads the credentials again into the same Configuration. Raises ApiServerUnconfigured."""

_DEFAULT = "~/.kube/config"
_BROKEN = (ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, AttributeError, LookupError)


def kubeconfig_path(explicit: str | None) -> str | None:
    """Returns the kubeconfig to use, or None for the service account of this pod.

    As kubectl does, it looks at the argument, $KUBECONFIG, ~/.kube/config. Raises ApiServerUnconfigured if a named file
    is missing.
    """
    for origin, paths in (("--kubeconfig", explicit), ("KUBECONFIG", os.environ.get("KUBECONFIG"))):
        if paths:
            if not any(_is_file(path) for path in paths.split(os.pathsep) if path):
                raise ApiServerUnconfigured(f"The kubeconfig {paths} is missing or is not a file: check {origin}.")
            return paths
    return _DEFAULT if _is_file(_DEFAULT) else None


def _is_file(path: str) -> bool:
    """Resolves `~`; pathlib's own function raises if there is no home, as in many containers."""
    return Path(os.path.expanduser(path)).is_file()


async def load_configuration(explicit: str | None) -> tuple[Any, Configure]:
    """Returns a `kubernetes.aio` Configuration and a function that reads its credentials again. Raises
    ApiServerUnconfigured.
    """
    path = kubeconfig_path(explicit)
    configuration = Configuration()

    async def configure() -> None:
        try:
            if path is None:
                load_incluster_config(client_configuration=configuration)
            else:
                await load_kube_config(config_file=path, client_configuration=configuration, persist_config=False)
        except _BROKEN as error:
            raise ApiServerUnconfigured(_sentence(path, error)) from error

    configuration.host = ""
    await configure()
    if not _is_address(str(configuration.host)):
        raise ApiServerUnconfigured(f"The kubeconfig {path} names no server with an http:// or https:// address.")
    configuration.proxy = configuration.proxy or _environment_proxy(configuration.host)
    return configuration, configure


def _is_address(url: str) -> bool:
    with suppress(ValueError):
        where = urlsplit(url)
        # Names of other forms fail only when they are resolved, as an error that no caller expects.
        host, _ = (where.hostname or "").encode("idna"), where.port
        return where.scheme in ("http", "https") and bool(host)
    return False


def _environment_proxy(url: str) -> str | None:
    """Returns the proxy for the URL by HTTPS_PROXY, HTTP_PROXY and NO_PROXY, read as kubectl reads them: ranges of
    addresses count, and a proxy without a scheme has http.
    """
    where, proxies = urlsplit(url), getproxies()
    proxy = proxies.get(where.scheme)
    if not proxy or proxy_bypass(where.netloc) or _is_in_ranges(where.hostname or "", proxies.get("no", "")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_in_ranges(host: str, excepted: str) -> bool:
    for each in excepted.split(","):
        # Most names are no address, and most exceptions no range.
        with suppress(ValueError):
            if ip_address(host) in ip_network(each.strip(), strict=False):
                return True
    return False


def _sentence(path: str | None, error: Exception) -> str:
    reason = " ".join(str(error).split()).rstrip(".")
    if path is None:
        return (
            "No API server is configured: give --kubeconfig, set KUBECONFIG, or run inside a cluster "
            f"(there is no ~/.kube/config, and in the cluster's place: {reason[:1].lower()}{reason[1:]})."
        )
    if isinstance(error, (TypeError, AttributeError, LookupError)):
        reason = "it is not a kubeconfig"
    return f"The kubeconfig {path} cannot be used: {reason}."
