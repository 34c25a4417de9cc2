"""The log of records: what was written is read back, whatever its length, and any cut end is left out."""

import io
import random

import pytest

from paribus.health.wandb_log import append, recover


@pytest.mark.parametrize(
    "lengths", [[0], [5, 32754, 1], [32747], [32748], [32749, 2], [100_000, 3], [32740, 1, 1, 70_000]]
)
def test_records_of_any_length_are_read_back(lengths):
    """Also those that fill a block but for less than a header, written at once or one by one."""
    dice = random.Random(0)
    records = [dice.randbytes(n) for n in lengths]
    once, single = io.BytesIO(), io.BytesIO()
    ends = append(once, 0, records)
    at = 0
    for record in records:
        [at] = append(single, at, [record])
    assert single.getvalue() == once.getvalue()
    once.seek(0)
    assert list(recover(once)) == list(zip(records, ends, strict=True))


def test_a_cut_or_damaged_end_is_left_out():
    """At any byte around the ends of records and blocks; what comes before is there."""
    records = [b"a" * 40, b"b" * 33_000, b"c" * 7]
    file = io.BytesIO()
    ends = append(file, 0, records)
    whole = file.getvalue()
    for size in [*range(130), *range(32_700, 32_800), *range(len(whole) - 40, len(whole))]:
        found = list(recover(io.BytesIO(whole[:size])))
        assert [end for _, end in found] == [end for end in ends if end <= size]
        damaged = bytearray(whole)
        damaged[size] ^= 1
        kept = [data for data, _ in recover(io.BytesIO(bytes(damaged)))]
        assert kept == records[: len(kept)]
        assert len(kept) <= sum(end <= size for end in ends) + (32_762 <= size < 32_768)  # nobody reads the padding


def test_a_full_disk_leaves_the_file_as_it_was():
    """Also if a part was written."""

    class Full(io.BytesIO):
        def write(self, data):
            if self.tell() > 60:
                raise OSError(28, "No space left on device")
            return super().write(data[:20])

    file = Full()
    [end] = append(file, 0, [b"x" * 20])
    before = file.getvalue()
    with pytest.raises(OSError, match="No space"):
        append(file, end, [b"y" * 100])
    assert file.getvalue() == before
