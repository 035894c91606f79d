"""Two that answer each other on one processor: whoever spins lets the other one run."""

from __future__ import annotations

import os
import statistics
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from support.options import Options
from support.patience import LAB, PATIENCE_S
from support.world import PROVIDERS

if TYPE_CHECKING:
    from support.fixtures import OpenContext

ROUNDS, SERIES = 50, 4
# What an answer would cost the one that waits if it kept the processor; in the lab's guest it costs 6 ms without.
SPIN_US = 50_000.0 if LAB else 2000.0


@pytest.mark.parametrize("provider", PROVIDERS)
def test_answers_do_not_wait_for_the_end_of_spinning(open_context: OpenContext, provider: str) -> None:
    options = Options(providers=(provider,), spin_us=SPIN_US)
    here, there = open_context(options), open_context(options)
    word = np.ones(8, np.uint8)
    inbox, outbox = here.register(np.zeros(8, np.uint8)), there.register(np.zeros(8, np.uint8))
    to_here, to_there = inbox.share("w"), outbox.share("w")
    here.write(word, to_there).result(PATIENCE_S)
    there.write(word, to_here).result(PATIENCE_S)
    processors = os.sched_getaffinity(0)
    one = {min(processors)}

    def answer() -> None:
        os.sched_setaffinity(0, one)  # of this thread
        for _ in range(ROUNDS * SERIES):
            there.notification(PATIENCE_S).result()
            there.write(word, to_here, notify=1).result(PATIENCE_S)

    answering = threading.Thread(target=answer)
    answering.start()
    os.sched_setaffinity(0, one)
    try:
        medians = []
        for _ in range(SERIES):
            times = []
            for _ in range(ROUNDS):
                start = time.thread_time()
                here.write(word, to_there, notify=1).result(PATIENCE_S)
                here.notification(PATIENCE_S).result()
                times.append(time.thread_time() - start)
            medians.append(statistics.median(times))
    finally:
        os.sched_setaffinity(0, processors)
        answering.join()
    # Of this thread's processor time, to which whoever else uses the processor adds nothing.
    assert min(medians) * 1e6 < SPIN_US / 4
