"""Importing the native module: under a storm of signals, a second time, and in a sub-interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

import zerohop._native
from support.patience import ANSWER_S

pytestmark = pytest.mark.unprivileged

# Interrupts the enumerations of the module, which are made by code of Python's.
INTERRUPTED = """
import importlib.util, signal, sys

stormy = True

def interrupt(number, frame):
    if stormy and frame.f_code.co_filename.endswith("enum.py"):
        raise KeyboardInterrupt

import enum
spec = importlib.util.spec_from_file_location("zerohop._native", sys.argv[1])
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 2e-5, 2e-5)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
stormy = False
signal.setitimer(signal.ITIMER_REAL, 0)
print(module.Status.OK.value)
"""

TWICE = """
import sys, zerohop
context = zerohop.Context()
for name in [name for name in sys.modules if name.partition(".")[0] == "zerohop"]:
    del sys.modules[name]
try:
    import zerohop
except ImportError as error:
    print(error)
context.close()
"""

# An interpreter that shares the GIL may import modules that were not made for several; Python itself asks the others.
IN_ANOTHER = """
import sys

def make():
    try:
        import _interpreters
        return _interpreters, _interpreters.create("legacy")
    except ImportError:
        import _xxsubinterpreters
        return _xxsubinterpreters, _xxsubinterpreters.create(isolated=False)

def use(here, there):
    memory = there.alloc(10)
    here.write(b"0123456789", memory.share("rw"), notify=1).result(10)
    there.notification(10).result()
    print(memory.read_bytes(), flush=True)

def open_both():
    import zerohop
    return zerohop.Context(), zerohop.Context()

if sys.argv[1] == "first":
    both = open_both()
interpreters, other = make()
interpreters.run_string(other, '''
for _ in range(2):
    try:
        import zerohop
    except ImportError as error:
        print(error, flush=True)
''')
if sys.argv[1] == "second":
    both = open_both()
use(*both)
interpreters.destroy(other)
use(*both)
for context in both:
    context.close()
both = open_both()
use(*both)
for context in both:
    context.close()
"""


def test_a_storm_of_signals() -> None:
    """A handler that raises in the middle of the import does not end the process."""
    path = zerohop._native.__file__
    assert path is not None
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, path], capture_output=True, text=True, timeout=ANSWER_S, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "0\n"), ran.stderr


def test_a_second_time() -> None:
    ran = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=ANSWER_S, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "cannot be loaded again" in ran.stdout


@pytest.mark.parametrize("when", ["first", "second"])
def test_in_a_sub_interpreter(when: str) -> None:
    """It is refused, and the main interpreter's zerohop works on, whether that is imported first or second."""
    ran = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER, when], capture_output=True, text=True, timeout=ANSWER_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    refused, again, *moved = ran.stdout.splitlines()
    assert "by the main interpreter only" in refused
    assert again == refused
    assert moved == ["b'0123456789'"] * 3
