"""Reads `host:port`, the address at which a program listens."""

import re
from dataclasses import dataclass

HIGHEST_PORT = 65535
ADDRESS_PATTERN = r"(?:\[([0-9A-Fa-f:.]+(?:%[0-9A-Za-z._~-]+)?)\]|([0-9A-Za-z.-]*)):([0-9]{1,5})"
_ADDRESS = re.compile(ADDRESS_PATTERN)


class NoAddress(ValueError):
    """The text is not an address to listen on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """Port 0 lets the system choose."""

    host: str | None
    """None means every IPv4 and IPv6 address."""
    port: int

    def __str__(self) -> str:
        host = self.host or ""
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def read_address(text: str) -> ListenAddress:
    """Reads `host:port`, `[v6]:port`, or `:port` for every interface. Raises NoAddress."""
    parts = _ADDRESS.fullmatch(text)
    if parts is None or int(parts[3]) > HIGHEST_PORT:
        raise NoAddress(f"{text!r} is not an address to listen on; write host:port, for example 127.0.0.1:8080")
    return ListenAddress(host=parts[1] or parts[2] or None, port=int(parts[3]))
