"""Compares zerohop with other libraries by equal transfers, on one host with two NVIDIA GPUs.

`python -m bench.peers` measures. Each peer is a file here with one function, `run(side)`, which both of its processes
call.
"""
