"""Numbers of ranges: what 64 bits do not hold is refused."""

from __future__ import annotations

import numpy as np
import pytest

from zerohop.storage.numbers import check_ranges


def test_ranges_of_more_bytes_than_there_are_addresses() -> None:
    """The sum of their lengths would wrap, although each of them lies within the memory."""
    zeros, lengths = np.zeros(1 << 10, np.int64), np.full(1 << 10, 1 << 53)
    with pytest.raises(ValueError, match=r"2\*\*63 bytes or more"):
        check_ranges(zeros, zeros, lengths, 1 << 53)
    check_ranges(zeros[1:], zeros[1:], lengths[1:], 1 << 53)
    check_ranges(zeros, zeros, np.append(lengths[:-1], 8), 1 << 53)
