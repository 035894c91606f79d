"""The explicit, verbs-shaped API: devices, ports, endpoints, memory regions, work requests and completions.

For those who want to say themselves which queue pair carries what. Nothing here is chosen, retried or striped, and
nothing runs in the background: what you post is what the device does. ``zerohop.Context`` is the other way, which also
needs no RDMA device. The steps are those of MORI's GPU data interchange example:

    rdma = Context()                                    # 1
    port = rdma.choose_port()                           # 2
    device = rdma.open(port)                            # 3
    endpoint = device.create_endpoint()                 # 4
    endpoint.connect(handle_of_the_peer)                # 5
    region = device.register(array)                     # 6
    endpoint.post_write(region, remote)                 # 7
    endpoint.wait()

All objects are context managers, and may be used from any thread. Closing one closes what was made from it first; one
that is dropped closes itself. Each keeps alive what it was made from.

Verified on Soft-RoCE only. **Not verified on hardware.**
"""

from zerohop.fabric.completions import Completion
from zerohop.fabric.config import EndpointConfig
from zerohop.fabric.context import ActivePort, Context, DeviceContext
from zerohop.fabric.devices import Device, DeviceLimits, Port
from zerohop.fabric.endpoint import Endpoint
from zerohop.fabric.handle import EndpointHandle
from zerohop.fabric.memory import Access, MemoryRegion, RegionSlice, RemoteMemory
from zerohop.fabric.requests import CompareSwap, FetchAdd, Read, Receive, Send, SendRequest, Write

__all__ = [
    "Access",
    "ActivePort",
    "CompareSwap",
    "Completion",
    "Context",
    "Device",
    "DeviceContext",
    "DeviceLimits",
    "Endpoint",
    "EndpointConfig",
    "EndpointHandle",
    "FetchAdd",
    "MemoryRegion",
    "Port",
    "Read",
    "Receive",
    "RegionSlice",
    "RemoteMemory",
    "Send",
    "SendRequest",
    "Write",
]
