"""Lets kernels of a GPU move bytes to other processes, signal their arrival and wait: ``Queue``, and what kernels call.

``zerohop.device.triton`` has the functions for kernels in Triton, ``zerohop/device.hpp`` those for CUDA and HIP.
"""

from pathlib import Path

from zerohop.device.queue import Queue
from zerohop.device.status import CLOSED, FAILED, OK, PEER_LOST, TIMED_OUT

__all__ = ["CLOSED", "FAILED", "OK", "PEER_LOST", "TIMED_OUT", "Queue", "include_dir"]


def include_dir() -> str:
    """Return the folder for ``-I`` in which compilers find ``zerohop/device.hpp``."""
    return str(Path(__file__).with_name("include"))
