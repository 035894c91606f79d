"""GPUs of both vendors in one process, in software: below CUDA's and HIP's interfaces (tests/native/fake_hip)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import ANSWER_S
from support.software_gpus import IN_SOFTWARE

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not IN_SOFTWARE, reason="two vendors' GPUs in one machine are there in software alone"),
]

# Writes from each place to each, and back.
PROGRAM = """
import numpy as np
import zerohop as zh

PLACES = ("host", "cuda:0", "cuda:1", "hip:0", "hip:1")
NBYTES = 1 << 20
here, there = zh.Context(), zh.Context()
names = [device.name for device in here.devices]
assert [name for name in names if name.startswith(("cuda", "hip"))] == list(PLACES[1:]), names
for number, source in enumerate(PLACES):
    for target in PLACES:
        mine, theirs = here.alloc(NBYTES, source), there.alloc(NBYTES, target)
        data = np.random.default_rng(number).integers(0, 256, NBYTES, np.uint8).tobytes()
        mine.write_bytes(0, data)
        handle = theirs.share("rw")
        write = here.write(mine, handle)
        write.result()
        assert theirs.read_bytes() == data, (source, target)
        back = here.alloc(NBYTES, source)
        here.read(handle, back).result()
        assert back.read_bytes() == data, (target, source)
        print(source, target, write.explain().provider)
here.close()
there.close()
"""


def test_bytes_go_between_places_of_both() -> None:
    # The library with HIP's interface is built beside the one with CUDA's.
    folders = [folder for folder in os.environ["LD_LIBRARY_PATH"].split(os.pathsep) if folder]
    beside = [str(Path(folder).with_name("fake_hip")) for folder in folders if Path(folder).name == "fake_cuda"]
    environment = os.environ | {
        "LD_LIBRARY_PATH": os.pathsep.join(folders + beside),
        "FAKE_CUDA_DEVICES": "2",
        "FAKE_HIP_DEVICES": "2",
    }
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=ANSWER_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    providers = {tuple(line.split()[:2]): line.split()[2] for line in ran.stdout.splitlines()}
    assert len(providers) == 25
    # Devices of one vendor reach each other's memory; what lies at two vendors goes through the host.
    assert providers["hip:0", "hip:1"] == providers["cuda:0", "cuda:1"] == "p2p"
    assert providers["cuda:0", "hip:0"] != "p2p"
    assert providers["hip:0", "cuda:0"] != "p2p"
