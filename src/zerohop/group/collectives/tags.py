"""Writes into the tag of each message what its sender does, and says how that differs from what this rank does.

A tag has 32 bits: 8 of the number of the collective, 4 of its kind, 2 of the operator, 6 of the type of the elements,
and 12 of a checksum of the root and the length. The same type has another number if NCCL does the work. A kind of 15
stands for a failure: 4 bits of why and 16 bits of a rank follow.
"""

from __future__ import annotations

import enum
import functools
import zlib
from typing import Final, NamedTuple

from zerohop.group.collectives.plan import KINDS

OPERATORS: Final = ("sum", "prod", "min", "max")
BACKENDS: Final = ("zerohop", "nccl")
# The place of a type in this list is its number in tags; there is room for 48. No other type can be reduced, because
# two that shared a number could be taken for each other. The first one stands for what only moves bytes.
TYPES: Final = (
    "",
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float96",
    "float128",
    "complex64",
    "complex128",
    "complex192",
    "complex256",
    # of ml_dtypes
    "int1",
    "int2",
    "int4",
    "uint1",
    "uint2",
    "uint4",
    "float4_e2m1fn",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
# The types that NCCL reduces by way of torch; their numbers in tags count from 48.
NCCL_TYPES: Final = ("", "bool", "int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
_FIRST_OF_NCCL: Final = 48
_FAILURE: Final = 15
_NUMBERS: Final = 256
# An odd factor, so that no two roots below 4096 have the same sum with one length.
_ROOT_FACTOR: Final = 977


class Failure(enum.IntEnum):
    """Says why a rank has given a collective up."""

    LOST = 1
    LATE = 2
    DIFFERS = 3
    OTHER = 4


_FAILURES: Final = frozenset(map(int, Failure))


class Tag(NamedTuple):
    """Holds the fields of a tag."""

    number: int
    kind: int
    operator: int
    type: int
    rest: int

    def __int__(self) -> int:
        return self.number << 24 | self.kind << 20 | self.operator << 18 | self.type << 12 | self.rest

    @property
    def failure(self) -> tuple[Failure, int] | None:
        """Return why the sender has failed, and which rank it names; None if it is no such tag."""
        if self.kind != _FAILURE:
            return None
        bits = int(self)
        why = bits >> 16 & 15
        return Failure(why) if why in _FAILURES else Failure.OTHER, bits & 0xFFFF


@functools.lru_cache(maxsize=256)
def tag_of(
    kind: str, operator: str = "sum", type_name: str = "", root: int = 0, nbytes: int = 0, backend: str = "zerohop"
) -> Tag:
    """Return the tag of the messages of a collective, with the number 0.

    ``type_name``: one of TYPES, or of NCCL_TYPES if the backend is NCCL.
    """
    rest = (root * _ROOT_FACTOR + zlib.crc32(nbytes.to_bytes(8, "little"))) & 0xFFF
    number = TYPES.index(type_name) if backend == "zerohop" else _FIRST_OF_NCCL + NCCL_TYPES.index(type_name)
    return Tag(0, KINDS.index(kind), OPERATORS.index(operator), number, rest)


def number_bits(number: int) -> int:
    """Return the bits of a tag that say which collective of the group it is."""
    return number % _NUMBERS << 24


def failure_tag(number: int, failure: Failure, rank: int) -> int:
    """Return the tag of the message by which a rank says that it has given a collective up."""
    return number_bits(number) | _FAILURE << 20 | failure << 16 | min(rank, 0xFFFF)


def parsed(bits: int) -> Tag:
    """Return the fields of a tag that was received."""
    return Tag(bits >> 24, bits >> 20 & 15, bits >> 18 & 3, bits >> 12 & 63, bits & 0xFFF)


def difference(here: Tag, there: Tag) -> str:
    """Say how what another rank does differs from what this rank does."""
    texts = []
    if there.number != here.number:
        texts.append(
            f"it is at collective {there.number} of the group (counted modulo 256), this rank at {here.number}"
        )
    if there.kind != here.kind:
        texts.append(f"it calls {_kind_name(there.kind)}, this rank {_kind_name(here.kind)}")
    else:
        if there.operator != here.operator:
            texts.append(f'its op is "{OPERATORS[there.operator]}", that of this rank "{OPERATORS[here.operator]}"')
        if _backend(there) != _backend(here):
            texts.append(f'its backend is "{_backend(there)}", that of this rank "{_backend(here)}"')
        elif there.type != here.type:
            texts.append(f"its dtype is {_type_name(there.type)}, that of this rank {_type_name(here.type)}")
        if there.rest != here.rest or not texts:  # a tag has only a checksum of them
            texts.append("its root or its number of bytes is another")
    return "; ".join(texts)


def _backend(tag: Tag) -> str:
    return BACKENDS[tag.type >= _FIRST_OF_NCCL]


def _type_name(number: int) -> str:
    if number >= _FIRST_OF_NCCL:
        number -= _FIRST_OF_NCCL
        return NCCL_TYPES[number] if number < len(NCCL_TYPES) else "unknown"
    return TYPES[number] if number < len(TYPES) else "unknown"


def _kind_name(number: int) -> str:
    return KINDS[number] if number < len(KINDS) else "something else"
