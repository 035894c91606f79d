"""The same transfers with zerohop and with what else there is, on one host with two NVIDIA GPUs.

`python -m bench.peers` measures; each peer is a file here with one function, `run(side)`, that both of its processes
call.
"""
