"""Reads handles that version 0.1 pickled: they name this module. It goes with version 0.3."""

from zerohop.core.memory.remote_buffer import RemoteBuffer

__all__ = ["RemoteBuffer"]
