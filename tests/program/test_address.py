import pytest
from hypothesis import given
from hypothesis import strategies as st

from program.address import ListenAddress, NoAddress, read_address


def test_addresses_are_read_as_go_writes_them() -> None:
    assert read_address(":9394") == ListenAddress(host=None, port=9394)
    assert read_address("127.0.0.1:1") == ListenAddress(host="127.0.0.1", port=1)
    assert read_address("node.example:80") == ListenAddress(host="node.example", port=80)
    assert read_address("[::1]:80") == ListenAddress(host="::1", port=80)


@pytest.mark.parametrize(
    "text", ["", "9394", ":", ":x", ":65536", "host:-1", ":²", "::1:9394", "[::1", "[::1]", "[]:80", "a b:80", ":80\n"]
)
def test_what_is_no_address_is_one_sentence(text: str) -> None:
    with pytest.raises(NoAddress, match="is not an address to listen on; write host:port"):
        read_address(text)


@given(st.sampled_from([None, "127.0.0.1", "::1", "fe80::1%eth0", "node-1.example"]), st.integers(0, 65535))
def test_an_address_is_read_as_it_was_written(host: str | None, port: int) -> None:
    address = ListenAddress(host=host, port=port)
    assert read_address(str(address)) == address
