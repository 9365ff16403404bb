"""System calls by number, for those that libc does not wrap or that a filter names.

The numbers differ between architectures. On one that is not listed `ARCHITECTURE` is None: there is no
filter, and `call` fails with ENOSYS.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from typing import Literal

Architecture = Literal["x86_64", "aarch64"]

# name: x86_64, aarch64
NUMBERS = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setgroups": (116, 159),
    "setns": (308, 268),
    "setresgid": (119, 149),
    "setresuid": (117, 147),
    "settimeofday": (164, 170),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}


def _architecture() -> Architecture | None:
    """The architecture of this process, which is not that of the machine for a 32-bit Python."""
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return None
    match platform.machine():
        case "x86_64":
            return "x86_64"
        case "aarch64":
            return "aarch64"
    return None


ARCHITECTURE = _architecture()
_libc = ctypes.CDLL(None, use_errno=True)


def number(name: str, architecture: Architecture) -> int:
    return NUMBERS[name][0 if architecture == "x86_64" else 1]


def call(name: str, *arguments: int | bytes | None) -> int:
    """Make a system call, for the calling thread only. Raises OSError."""
    if ARCHITECTURE is None:
        raise OSError(errno.ENOSYS, f"{name}: not known on this architecture")
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result: int = _libc.syscall(ctypes.c_long(number(name, ARCHITECTURE)), *words)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result
