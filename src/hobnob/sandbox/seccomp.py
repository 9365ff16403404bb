"""The system calls that programs in the sandbox cannot make, as a filter for the kernel (seccomp).

The filter is a program of classic BPF that the kernel runs at each system call. It allows everything but what
is named here: parts of the kernel that ordinary programs do not need and that were often a way out.
"""

from __future__ import annotations

import errno
import functools
import struct
from collections.abc import Iterable

from hobnob.sandbox import syscalls
from hobnob.sandbox.syscalls import Architecture

_REFUSED = (
    *("keyctl", "add_key", "request_key"),  # keys of the kernel
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp"),  # other processes
    *("mount", "umount2", "pivot_root", "move_mount", "open_tree", "open_tree_attr", "mount_setattr"),
    *("fsopen", "fsconfig", "fsmount", "fspick", "setns", "open_by_handle_at", "fanotify_init"),
    *("bpf", "perf_event_open", "userfaultfd", "lookup_dcookie", "syslog"),
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot"),
    *("swapon", "swapoff", "acct", "quotactl", "quotactl_fd"),
    *("settimeofday", "clock_settime", "clock_adjtime", "adjtimex"),
)
# As on a kernel without them: libc and others then use older calls. The flags of clone3 are out of reach
# of a filter.
_MISSING = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")

_NEW_NAMESPACE = 0x7E020000  # any of the CLONE_NEW* flags but CLONE_NEWTIME
_CLONE_NEWTIME = 0x80  # for unshare; for clone these bits are a signal
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # input for a terminal, as if typed
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_RAW, _SOCK_PACKET, _SOCK_TYPES = 3, 10, 0xF
_NETLINK_ROUTE = 0  # libc asks it for the addresses of the machine

_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000  # numbers from here on belong to a second ABI of x86_64
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in the data of a call

_Code = list[bytes]


@functools.cache
def program(architecture: Architecture) -> bytes:
    """The filter for one architecture. Calls of another one, such as of 32-bit programs, end the process."""
    own = _AUDIT_ARCHITECTURE[architecture]
    code = [*_load(_ARCHITECTURE), *_if_equal(own, [], otherwise=_kill()), *_load(_NUMBER)]
    code += _instruction(0x35, _X32, 0, 1) + _refuse(errno.ENOSYS)
    blocks = [(name, _refuse(errno.EPERM)) for name in _REFUSED]
    blocks += [(name, _refuse(errno.ENOSYS)) for name in _MISSING]
    blocks += [
        ("clone", _no_flags(_NEW_NAMESPACE)),
        ("unshare", _no_flags(_NEW_NAMESPACE | _CLONE_NEWTIME)),
        ("ioctl", [*_argument(1), *_refuse_values((_TIOCSTI, _TIOCLINUX), errno.EPERM), *_allow()]),
        ("socket", _socket()),
        ("socketpair", _only(0, _AF_UNIX, errno.EAFNOSUPPORT)),
    ]
    for name, block in blocks:
        code += _if_equal(syscalls.number(name, architecture), block)
    return b"".join(code + _allow())


def _socket() -> _Code:
    """Local sockets, TCP and UDP, and the questions of libc about addresses. No raw packets, nothing else."""
    types = [*_argument(1), *_instruction(0x54, _SOCK_TYPES)]
    internet = [*types, *_refuse_values((_SOCK_RAW, _SOCK_PACKET), errno.EPERM), *_allow()]
    return [
        *_argument(0),
        *_if_equal(_AF_UNIX, _allow()),
        *_if_equal(_AF_INET, internet),
        *_if_equal(_AF_INET6, internet),
        *_if_equal(_AF_NETLINK, _only(2, _NETLINK_ROUTE, errno.EPROTONOSUPPORT)),
        *_refuse(errno.EAFNOSUPPORT),
    ]


def _no_flags(flags: int) -> _Code:
    return [*_argument(0), *_instruction(0x45, flags, 0, 1), *_refuse(errno.EPERM), *_allow()]


def _only(argument: int, value: int, error: int) -> _Code:
    return [*_argument(argument), *_if_equal(value, _allow()), *_refuse(error)]


def _refuse_values(values: Iterable[int], error: int) -> _Code:
    return [each for value in values for each in _if_equal(value, _refuse(error))]


def _if_equal(value: int, block: _Code, otherwise: _Code | None = None) -> _Code:
    """Run a block, which must return, if the loaded word has this value; else `otherwise`, or go on."""
    if otherwise is not None:
        return [*_instruction(0x15, value, len(otherwise), 0), *otherwise, *block]
    return [*_instruction(0x15, value, 0, len(block)), *block]


def _argument(index: int) -> _Code:
    """Load the low half of an argument. The kernel ignores the high half of those we look at."""
    return _load(_ARGUMENTS + 8 * index)


def _load(offset: int) -> _Code:
    return _instruction(0x20, offset)


def _allow() -> _Code:
    return _instruction(0x06, 0x7FFF0000)


def _refuse(error: int) -> _Code:
    return _instruction(0x06, 0x00050000 | error)


def _kill() -> _Code:
    return _instruction(0x06, 0x80000000)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> _Code:
    return [struct.pack("=HBBI", code, if_true, if_false, value)]
