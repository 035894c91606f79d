"""Offers the explicit, verbs-shaped API: devices, ports, endpoints, memory regions, work requests, completions.

For code that decides itself which queue pair carries which request. The library chooses, retries and stripes nothing
here, and runs nothing in the background: the device does exactly what you post. ``zerohop.Context`` is the
automatic API, which also works without RDMA devices. The steps are those of MORI's GPU data interchange example:

    rdma = Context()                                    # 1
    port = rdma.choose_port()                           # 2
    device = rdma.open(port)                            # 3
    endpoint = device.create_endpoint()                 # 4
    endpoint.connect(handle_of_the_peer)                # 5
    region = device.register(array)                     # 6
    endpoint.post_write(region, remote)                 # 7
    endpoint.wait()

All objects are context managers, and may be used from any thread. Closing an object first closes all objects that were
made from it. A dropped object closes itself. An object keeps alive the object that it was made from.

Verified on Soft-RoCE only. **Not verified on hardware.**
"""

from zerohop.fabric.completions import Completion
from zerohop.fabric.config import EndpointConfig
from zerohop.fabric.context import ActivePort, Context, DeviceContext
from zerohop.fabric.devices import Device, DeviceLimits, Port
from zerohop.fabric.endpoint import Endpoint
from zerohop.fabric.handle import EndpointHandle
from zerohop.fabric.kernel_queue import KernelQueue
from zerohop.fabric.memory import Access, MemoryRegion, RegionSlice, RemoteMemory
from zerohop.fabric.requests import CompareSwap, FetchAdd, Read, Receive, Send, SendRequest, Write

__all__ = [
    "Access", "ActivePort", "CompareSwap", "Completion", "Context", "Device", "DeviceContext", "DeviceLimits",
    "Endpoint", "EndpointConfig", "EndpointHandle", "FetchAdd", "KernelQueue", "MemoryRegion", "Port", "Read",
    "Receive", "RegionSlice", "RemoteMemory", "Send", "SendRequest", "Write",
]  # fmt: skip
