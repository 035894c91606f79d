"""Tells what the dtypes of safetensors are: their bits, and their names in torch, numpy and ml_dtypes."""

from __future__ import annotations

from typing import Final, NamedTuple


class Dtype(NamedTuple):
    """Describes a dtype: bits of an element, and its names; empty where the library has none.

    Attributes:
        bits: of one element of the file's shape.
        torch: an attribute of the module torch.
        numpy: an attribute of the module numpy, or of ml_dtypes.
    """

    bits: int
    torch: str = ""
    numpy: str = ""


DTYPES: Final = {
    "BOOL": Dtype(8, "bool", "bool_"),
    "U8": Dtype(8, "uint8", "uint8"),
    "I8": Dtype(8, "int8", "int8"),
    "F8_E4M3": Dtype(8, "float8_e4m3fn", "float8_e4m3fn"),
    "F8_E4M3FNUZ": Dtype(8, "float8_e4m3fnuz", "float8_e4m3fnuz"),
    "F8_E5M2": Dtype(8, "float8_e5m2", "float8_e5m2"),
    "F8_E5M2FNUZ": Dtype(8, "float8_e5m2fnuz", "float8_e5m2fnuz"),
    "F8_E8M0": Dtype(8, "float8_e8m0fnu", "float8_e8m0fnu"),
    "F4": Dtype(4, "float4_e2m1fn_x2"),
    "F6_E2M3": Dtype(6),
    "F6_E3M2": Dtype(6),
    "I16": Dtype(16, "int16", "int16"),
    "U16": Dtype(16, "uint16", "uint16"),
    "F16": Dtype(16, "float16", "float16"),
    "BF16": Dtype(16, "bfloat16", "bfloat16"),
    "I32": Dtype(32, "int32", "int32"),
    "U32": Dtype(32, "uint32", "uint32"),
    "F32": Dtype(32, "float32", "float32"),
    "I64": Dtype(64, "int64", "int64"),
    "U64": Dtype(64, "uint64", "uint64"),
    "F64": Dtype(64, "float64", "float64"),
    "C64": Dtype(64, "complex64", "complex64"),
}
# torch alone has it, and packs two of them into an element, so that the last dimension is half as long.
PAIRED: Final = "F4"
BITS: Final = {name: dtype.bits for name, dtype in DTYPES.items()}
OF_TORCH: Final = {dtype.torch: name for name, dtype in DTYPES.items() if dtype.torch}
OF_NUMPY: Final = {dtype.numpy.rstrip("_"): name for name, dtype in DTYPES.items() if dtype.numpy}
