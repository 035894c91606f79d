"""A generated safetensors file with the shapes and dtypes of all-MiniLM-L6-v2 (104 tensors; 91 MB in full)."""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING

from zerohop.cli.payload import random_bytes

if TYPE_CHECKING:
    from pathlib import Path

HIDDEN, INTERMEDIATE, LAYERS, POSITIONS, VOCABULARY = 384, 1536, 6, 512, 30522
_BYTES = {"F32": 4, "I64": 8}


def shapes(vocabulary: int = VOCABULARY) -> dict[str, tuple[str, list[int]]]:
    """Name -> (dtype, shape) in the order of the names."""
    found: dict[str, tuple[str, list[int]]] = {"embeddings.position_ids": ("I64", [1, POSITIONS])}

    def matrix(name: str, rows: int, columns: int) -> None:
        found[f"{name}.weight"] = ("F32", [rows, columns])

    def linear(name: str, rows: int, columns: int) -> None:
        matrix(name, rows, columns)
        found[f"{name}.bias"] = ("F32", [rows])

    def norm(name: str) -> None:
        found[f"{name}.weight"] = found[f"{name}.bias"] = ("F32", [HIDDEN])

    matrix("embeddings.word_embeddings", vocabulary, HIDDEN)
    matrix("embeddings.position_embeddings", POSITIONS, HIDDEN)
    matrix("embeddings.token_type_embeddings", 2, HIDDEN)
    norm("embeddings.LayerNorm")
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            linear(f"{prefix}.attention.self.{part}", HIDDEN, HIDDEN)
        linear(f"{prefix}.attention.output.dense", HIDDEN, HIDDEN)
        norm(f"{prefix}.attention.output.LayerNorm")
        linear(f"{prefix}.intermediate.dense", INTERMEDIATE, HIDDEN)
        linear(f"{prefix}.output.dense", HIDDEN, INTERMEDIATE)
        norm(f"{prefix}.output.LayerNorm")
    linear("pooler.dense", HIDDEN, HIDDEN)
    return dict(sorted(found.items()))


def write_model(path: Path, vocabulary: int = VOCABULARY) -> Path:
    """Writes the file with random contents; returns its path."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in shapes(vocabulary).items():
        begin, end = end, end + math.prod(shape) * _BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.write(random_bytes(vocabulary, end).data)
    return path
