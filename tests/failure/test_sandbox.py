"""In a sandbox that refuses a system call: the error names the call, and says what to allow."""

from __future__ import annotations

import errno
import pickle
from typing import TYPE_CHECKING, get_args

import pytest

import zerohop as zh
from support import seccomp
from support.lanes import eventually
from support.options import Options
from support.patience import patience
from support.peer import Peer
from support.sandboxed import LIMIT_S, Moment, Step, run_program
from support.service import Service
from zerohop._native import NativeError

if TYPE_CHECKING:
    from support.fixtures import OpenContext, StartPeer

ALL = ["memfd_create", "eventfd", "pipe2", "epoll_create1", "socket", "socketpair", "bind", "listen"]
OF_SOCKETS = ["getsockopt", "setsockopt", "getsockname"]
# By these, threads wake the Context's own.
WAKING = ["epoll_ctl", "epoll_wait", "sendto", "recvfrom"]

MOMENTS: tuple[Moment, ...] = get_args(Moment)
OF_LIBRARY = ("Unsupported", "LimitReached", "PeerLost")
# Characters on stderr: a warning or two.
MOST_SAID = 2000


@pytest.mark.parametrize("call", ALL + WAKING + OF_SOCKETS)
def test_opening_without(start_peer: StartPeer, call: str) -> None:
    peer = start_peer(Options())
    peer.clear()  # the Context that it has opened could not be closed any more
    peer.call(Service.forbid, call)
    outcome = peer.call(Service.try_open, Options(providers=None))
    assert outcome.kind == "Unsupported", outcome
    assert outcome.says(call.replace("_", " "), "not permitted"), outcome
    assert "seccomp" in outcome.fix


@pytest.mark.parametrize("device", ["host", "sim:0"])
@pytest.mark.parametrize("call", ["memfd_create", "ftruncate"])
def test_allocating_without_shared_memory(start_peer: StartPeer, call: str, device: str) -> None:
    peer = start_peer(Options())
    peer.call(Service.forbid, call)
    outcome = peer.call(Service.try_alloc, 64, device)
    assert outcome.kind == "Unsupported", outcome
    assert outcome.says(call.replace("_", " "), "not permitted"), outcome
    assert "seccomp" in outcome.fix


def test_asking_for_shared_memory(start_peer: StartPeer) -> None:
    peer = start_peer(Options())
    peer.call(Service.forbid, "memfd_create")
    outcome = peer.call(Service.try_open, Options(providers=("shm",)))
    assert outcome.kind == "Unsupported", outcome
    assert outcome.says("memfd create", "not permitted"), outcome
    assert "seccomp" in outcome.fix


# The words of errors for a call whose refusal the system reports in words of its own.
TOLD_AS = {
    "clone": ("clone", "threads can be started"),  # the native part has a limit's words for both
    "openat": ("open", "no place"),
    "fstat": ("stat",),
}


# The other ways in which a sandbox refuses a call.
ALSO = [pytest.param(error, marks=pytest.mark.slow) for error in (errno.ENOSYS, errno.EACCES)]


# A peer answers by write(); for that call there is a test below.
@pytest.mark.parametrize("error", [errno.EPERM, *ALSO])
@pytest.mark.parametrize("call", [call for call in seccomp.NUMBERS if call != "write"])
def test_every_step_without(open_context: OpenContext, call: str, error: int) -> None:
    """Each works, or its error is the library's and names the call; in good time, and with few words on stderr."""
    here, by_tcp = open_context(Options()), open_context(Options(providers=("tcp",)))
    shared, plain, device, far = (
        here.alloc(4096),
        here.register(bytearray(4096)),
        here.alloc(4096, device="sim:0"),
        by_tcp.alloc(4096),
    )
    handles = {"shared": shared, "plain": plain, "device": device, "far": far}
    given = {kind: bytes(memory.share("rw")) for kind, memory in handles.items()}
    for moment in MOMENTS:
        peer = Peer()
        try:
            peer.open(Options())
            for step in peer.call(Service.live_without, call, error, moment, Options(), here.url, given):
                said = step.outcome.reason.partition("sandbox does")[2] or step.outcome.reason
                addressed = error == errno.EACCES and call in ("bind", "connect")  # permission may lack for the address
                words = ("Permission denied",) if addressed else TOLD_AS.get(call, (call,))
                names = any(word in said for word in words)
                assert step.outcome.kind == "ok" or (step.outcome.kind in OF_LIBRARY and names), (moment, step)
                assert step.seconds < LIMIT_S + patience(0.5), (moment, step)
            assert len(peer.said()) < MOST_SAID, peer.said()
        finally:
            peer.reap()  # it may not be able to end well


@pytest.mark.parametrize("providers", [None, ("shm",), ("tcp",)])
@pytest.mark.parametrize("error", [errno.EPERM, *ALSO])
def test_every_step_without_write(open_context: OpenContext, error: int, providers: tuple[str, ...] | None) -> None:
    """Threads and processes wake each other by it, and have another call for that: all goes on as before."""
    options = Options(providers=providers)
    here = open_context(options)
    given = {"shared": bytes(here.alloc(4096).share("rw")), "plain": bytes(here.register(bytearray(4096)).share("rw"))}
    for moment in MOMENTS:
        program = (
            "import ast, sys\n"
            "from support.options import Options\n"
            "from support.sandboxed import report_without_write\n"
            "report_without_write(*ast.literal_eval(sys.argv[1]), Options(providers=ast.literal_eval(sys.argv[2])),\n"
            "                     *ast.literal_eval(sys.argv[3]))\n"
        )
        ended = run_program(program, repr((error, moment)), repr(providers), repr((here.url, given)), text=False)
        steps: list[Step] = pickle.loads(ended.stdout)
        assert [step.name for step in steps if step.outcome.kind != "ok"] == [], (moment, steps)
        assert all(step.seconds < LIMIT_S for step in steps), (moment, steps)


@pytest.mark.parametrize("call", ["socket", "clone"])
def test_looking_a_name_up_without(call: str) -> None:
    """The error names the call: neither is the host unknown, nor a limit reached."""
    ended = run_program(
        "import sys, zerohop\n"
        "from support import seccomp\n"
        "context = zerohop.Context()\n"
        "seccomp.forbid(sys.argv[1], everywhere=True)\n"
        "error = context.connect('zerohop://nobody.invalid:99', timeout=5).exception(10)\n"
        "assert isinstance(error, zerohop.Unsupported), repr(error)\n"
        "assert f'{sys.argv[1]}: Operation not permitted' in error.reason, repr(error)\n",
        call,
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("call", ["fstat", "openat", "getdents64", "mmap"])
def test_opening_without_what_imports_need(call: str) -> None:
    """The first Context loads modules, and Python takes a file that it may not look at for one that is not there."""
    program = (
        "import errno, os, sys, zerohop\n"
        "from support import seccomp\n"
        f"seccomp.forbid({call!r}, everywhere=True)\n"
        "try:\n"
        "    zerohop.Context()\n"
        "except zerohop.Unsupported as error:\n"
        "    print(error.reason, flush=True)\n"
        "    os._exit(0)\n"
    )
    ended = run_program(program)
    assert ended.returncode == 0, ended.stderr
    assert TOLD_AS.get(call, (call,))[0] in ended.stdout.partition("sandbox does")[2], ended.stdout


@pytest.mark.parametrize("call", ["sendto", "poll", "close", "sendmsg"])
def test_closing_without(call: str) -> None:
    """All threads of a process that has worked are refused it: both sides close, and say nothing."""
    program = (
        "import threading\n"
        "import numpy, zerohop\n"
        "from support import seccomp\n"
        "owner, friend = zerohop.Context(), zerohop.Context()\n"
        "friend.write(numpy.ones(4096, numpy.uint8), owner.alloc(4096).share('rw')).result(5)\n"
        f"seccomp.forbid({call!r}, everywhere=True)\n"
        "for context in (friend, owner):\n"
        "    context.close()\n"
        "    context.close()\n"
        "for thread in threading.enumerate():\n"
        "    if thread is not threading.current_thread():\n"
        "        thread.join()\n"
    )
    ended = run_program(program)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("error", [errno.EACCES, errno.EPERM])
def test_what_python_has_another_way_for(open_context: OpenContext, start_peer: StartPeer, error: int) -> None:
    """Random bytes come from a device where the call for them is not allowed, but not where permission is missing."""
    here, peer = open_context(Options()), start_peer(Options())
    given = {"plain": bytes(here.register(bytearray(4096)).share("rw"))}
    steps = peer.call(Service.live_without, "getrandom", error, "opened", Options(), here.url, given)
    for step in steps:
        assert step.outcome.kind == "ok" or (error == errno.EACCES and "getrandom" in step.outcome.reason), step
        assert step.outcome.kind in ("ok", *OF_LIBRARY), step


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (errno.ENOSPC, "LimitReached", ("out of watches", "max user watches")),
        (errno.ENOMEM, "RegistrationFailed", ("out of memory",)),
    ],
)
@pytest.mark.parametrize("moment", ["opening", "opened"])
def test_no_room_to_watch_another_descriptor(
    open_context: OpenContext, start_peer: StartPeer, moment: Moment, error: int, kind: str, words: tuple[str, ...]
) -> None:
    """As the kernel says once its limit of watches for this user is reached."""
    here, peer = open_context(Options()), start_peer(Options())
    given = {"plain": bytes(here.register(bytearray(4096)).share("rw"))}
    steps = peer.call(Service.live_without, "epoll_ctl", error, moment, Options(), here.url, given)
    failed = [step for step in steps if step.outcome.kind != "ok"]
    assert failed
    for step in failed:
        assert step.outcome.kind == kind, step
        assert step.outcome.says(*words), step
        assert step.outcome.fix, step


def test_a_listener_that_may_serve_nobody(open_context: OpenContext) -> None:
    """Its log says why, in one line, and the peer learns at once that there is something to look at."""
    here, peer = open_context(Options()), Peer()
    try:
        peer.open(Options())
        url = peer.identity.url
        peer.call(Service.forbid_everywhere, "epoll_ctl")
        with pytest.raises(zh.PeerLost, match="hung up during the handshake") as caught:
            here.connect(url, timeout=LIMIT_S).result()
        assert "log of the peer" in caught.value.fix
        eventually(lambda: "epoll_ctl" in peer.said(), "the listener has said nothing")
        assert "cannot serve a peer" in peer.said()
        assert "Traceback" not in peer.said()
    finally:
        peer.reap()


def test_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a chroot in which nothing was mounted."""

    def make_no_doorbell(*_: object) -> None:
        raise NativeError(7, 0, "cannot make a doorbell (open /proc/self/fd): No such file or directory")

    monkeypatch.setattr("zerohop.core.lifecycle.Engine", make_no_doorbell)
    monkeypatch.setattr("zerohop.machine.host.why_no_context", lambda: ("/proc is not mounted", "mount it"))
    with pytest.raises(zh.Unsupported, match="open: /proc is not mounted") as caught:
        zh.Context()
    assert caught.value.fix == "mount it"
