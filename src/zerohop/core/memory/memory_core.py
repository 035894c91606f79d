"""Declares MemoryCore, the part of a Context's core that the code for memory may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop.core.runtime.runtime import Runtime

if TYPE_CHECKING:
    from zerohop.core.kernels.loading import CopyKernels
    from zerohop.core.memory.registration_cache import RegistrationCache
    from zerohop.core.memory.retention import Retention
    from zerohop.core.memory.shares import Shares


class MemoryCore(Runtime):
    """Adds to Runtime the registered memory of a Context.

    Attributes:
        kernels: the kernels with which GPUs copy page lists.
        retention: keeps buffers alive until nothing uses them.
        registration_cache: the cache of registrations, and the allocations.
        shares: the handles that this Context has given out.
    """

    kernels: CopyKernels
    retention: Retention
    registration_cache: RegistrationCache
    shares: Shares
