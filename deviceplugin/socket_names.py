"""The names of our plugins' sockets: `nvidia-gpu.0a1b2c3d.sock`.

Each registration has its own socket. Kubelet identifies a plugin by its socket's path, and from 1.37 on it accepts no
second registration of a known path. With separate paths, the new daemon and the old one can both be registered while
one replaces the other.
"""

import re

TOKEN_BYTES = 4
_TOKEN = re.compile(r"[0-9a-f]{8}")


def socket_name(resource: str, token: str) -> str:
    """Names the socket of one registration. `token` has eight hexadecimal digits."""
    return f"{_stem(resource)}.{token}.sock"


def shared_name(resource: str) -> str:
    """Returns the socket on which NVIDIA's and HAMi's plugins serve the resource."""
    return f"{_stem(resource)}.sock"


def refusing_name(resource: str, token: str) -> str:
    """Returns the socket of a registration that is to be refused; no program takes it for a plugin's socket."""
    return f".{socket_name(resource, token)}"


def is_socket_name(name: str, resource: str) -> bool:
    """Returns whether a plugin, ours or another, makes such a socket for the resource."""
    return name == shared_name(resource) or is_own_name(name, resource)


def is_own_name(name: str, resource: str) -> bool:
    """Returns whether only a daemon of ours makes such a socket for the resource."""
    before, after = f"{_stem(resource)}.", ".sock"
    middle = name.removeprefix(before).removesuffix(after)
    return name == f"{before}{middle}{after}" and _TOKEN.fullmatch(middle) is not None


def _stem(resource: str) -> str:
    return f"nvidia-{resource.rpartition('/')[2]}"
