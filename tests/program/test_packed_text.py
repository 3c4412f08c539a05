import gzip

from hypothesis import given
from hypothesis import strategies as st

from program.shared_page import SLICE_BYTES, PackedText

PIECES = st.lists(st.builds(lambda part, times: part * times, st.binary(max_size=40), st.integers(0, 5000)), max_size=8)


@given(PIECES)
def test_the_slices_are_a_gzip_file_and_each_is_unpacked_alone(pieces: list[bytes]) -> None:
    packed, text = PackedText(pieces), b"".join(pieces)
    file = b"".join(packed.slices)
    assert (gzip.decompress(file), len(file)) == (text, packed.gzip_bytes)
    unpacked = [packed.unpacked(number) for number in reversed(range(len(packed.slices)))]
    assert (b"".join(reversed(unpacked)), packed.text_bytes) == (text, len(text))
    assert max(map(len, unpacked)) <= SLICE_BYTES
