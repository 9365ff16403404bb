"""The filter for system calls, run as the kernel runs it, for each architecture."""

import errno
import struct

import pytest

from hobnob.sandbox import seccomp, syscalls
from hobnob.sandbox.syscalls import Architecture

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386 = 0x40000003
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
BOTH: list[Architecture] = ["x86_64", "aarch64"]
CONDITIONAL = {"clone", "unshare", "ioctl", "socket", "socketpair"}
OUTSIDE_THE_FILTER = {"setgroups", "setresgid", "setresuid"}


def decide(program: bytes, number: int, architecture: int, arguments: tuple[int, ...]) -> int:
    """Interpret the few instructions that the filter uses."""
    call = struct.pack("=IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    code = list(struct.iter_unpack("=HBBI", program))
    at = word = 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        match operation:
            case 0x20:
                word = struct.unpack_from("=I", call, value)[0]
            case 0x54:
                word &= value
            case 0x15:
                at += if_true if word == value else if_false
            case 0x35:
                at += if_true if word >= value else if_false
            case 0x45:
                at += if_true if word & value else if_false
            case 0x06:
                return int(value)


def made(architecture: Architecture, name: str, *arguments: int) -> str:
    number = syscalls.number(name, architecture)
    result = decide(seccomp.program(architecture), number, AUDIT[architecture], arguments)
    return "allowed" if result == ALLOW else errno.errorcode[result - ERRNO]


@pytest.mark.parametrize("architecture", BOTH)
def test_every_call_that_is_named_is_refused(architecture: Architecture) -> None:
    for name in syscalls.NUMBERS.keys() - CONDITIONAL - OUTSIDE_THE_FILTER:
        missing = name.startswith("io_uring_") or name == "clone3"
        assert made(architecture, name) == ("ENOSYS" if missing else "EPERM"), name
    for name in OUTSIDE_THE_FILTER:
        assert made(architecture, name) == "allowed"


@pytest.mark.parametrize("architecture", BOTH)
def test_a_process_can_be_made_but_no_namespace(architecture: Architecture) -> None:
    sigchld, files, new_user, new_time = 17, 0x400, 0x10000000, 0x80
    assert made(architecture, "clone", sigchld) == "allowed"
    assert made(architecture, "clone", new_user | sigchld) == "EPERM"
    assert made(architecture, "unshare", files) == "allowed"
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, new_user, 0x20000000, 0x40000000, new_time):
        assert made(architecture, "unshare", files | flag) == "EPERM"


@pytest.mark.parametrize("architecture", BOTH)
def test_only_ordinary_sockets_can_be_opened(architecture: Architecture) -> None:
    stream, datagram, raw, packet, close_on_exec = 1, 2, 3, 10, 0o2000000
    for family in (2, 10):
        assert made(architecture, "socket", family, stream | close_on_exec) == "allowed"
        assert made(architecture, "socket", family, datagram) == "allowed"
        assert made(architecture, "socket", family, raw | close_on_exec) == "EPERM"
        assert made(architecture, "socket", family, packet) == "EPERM"
    assert made(architecture, "socket", 1, stream) == made(architecture, "socketpair", 1) == "allowed"
    assert made(architecture, "socket", 16, raw, 0) == "allowed"
    assert made(architecture, "socket", 16, raw, 9) == "EPROTONOSUPPORT"
    for family in (*range(3, 10), *range(11, 16), *range(17, 50)):
        assert made(architecture, "socket", family, stream) == "EAFNOSUPPORT"
        assert made(architecture, "socketpair", family, stream) == "EAFNOSUPPORT"


@pytest.mark.parametrize("architecture", BOTH)
def test_nothing_can_be_typed_into_a_terminal(architecture: Architecture) -> None:
    tcgets = 0x5401
    assert made(architecture, "ioctl", 0, tcgets) == "allowed"
    for request in (0x5412, 0x541C, 0x1_0000_5412):  # the kernel ignores the high half
        assert made(architecture, "ioctl", 0, request) == "EPERM"


@pytest.mark.parametrize("architecture", BOTH)
def test_other_calling_conventions_are_no_way_around(architecture: Architecture) -> None:
    program, other = seccomp.program(architecture), {"x86_64": "aarch64", "aarch64": "x86_64"}[architecture]
    assert decide(program, 1, I386, ()) == KILL
    assert decide(program, 1, AUDIT[other], ()) == KILL
    assert decide(program, 0x40000000 | 1, AUDIT[architecture], ()) == ERRNO | errno.ENOSYS
    assert decide(program, 1, AUDIT[architecture], ()) == ALLOW
