"""Loads and saves tensors of safetensors files: ``load``, ``save``, and ``read_layout`` for their headers."""

from zerohop.integrations.safetensors.layout import SafetensorsError, SafetensorsFile, TensorEntry, read_layout
from zerohop.integrations.safetensors.loading import load
from zerohop.integrations.safetensors.saving import save

__all__ = ["SafetensorsError", "SafetensorsFile", "TensorEntry", "load", "read_layout", "save"]
