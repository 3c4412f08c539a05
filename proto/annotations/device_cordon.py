"""`hami.io/device-cordon`: GPUs an administrator keeps new pods away from."""

from collections.abc import Iterable

from proto.devices import DeviceUUID


def encode_cordon(uuids: Iterable[DeviceUUID]) -> str:
    return ",".join(sorted(uuids))


def decode_cordon(value: str) -> frozenset[DeviceUUID]:
    """Reads the UUIDs; blanks around entries and empty entries are allowed."""
    return frozenset(DeviceUUID(entry.strip()) for entry in value.split(",") if entry.strip())
