"""Differences between operating systems: file locks, memory, the name of the processor.

``fcntl`` and ``resource`` exist on POSIX systems only and are imported nowhere else.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from heatproof.errors import HeatproofError


@contextmanager
def file_lock(path: Path, busy: str) -> Iterator[None]:
    """Hold an exclusive lock on a file, which is created where it is missing.

    The lock ends with the block, or with the process. On a system that has neither ``fcntl`` nor
    ``msvcrt``, nothing is locked.

    Args:
        path: The lock file. Its content does not matter, and it is not deleted afterwards.
        busy: The message of the error if the lock is already held.

    Raises:
        HeatproofError: If another process, or another lock of this process, holds the file.
    """
    with path.open("a") as file:
        try:
            _lock(file)
        except BlockingIOError:
            raise HeatproofError(busy) from None
        try:
            yield
        finally:
            _unlock(file)


def _lock(file: IO[str]) -> None:
    if sys.platform == "win32":
        import msvcrt

        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError as error:  # Windows reports a held lock as "permission denied"
            raise BlockingIOError(*error.args) from error
    else:
        try:
            import fcntl
        except ImportError:
            return
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _unlock(file: IO[str]) -> None:
    """Release the lock on Windows, where closing the file may release it only later."""
    if sys.platform == "win32":
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)


def peak_memory() -> int | None:
    """Return the most memory this process has held so far, in bytes; None where it is unknown."""
    if sys.platform == "win32":
        return _windows_peak_memory()
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # macOS counts bytes, others KiB


def keep_freed_memory() -> None:
    """Let this process keep large blocks of memory that it frees, where the C library can (glibc).

    The tables of large runs are made and freed often, and memory that was given back has to be
    cleared by the system before it is used again.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            adjust = ctypes.CDLL(None).mallopt
            for option in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
                adjust(option, 1 << 30)


def cpu_name() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


class _MemoryCounters(ctypes.Structure):
    """Windows' PROCESS_MEMORY_COUNTERS."""

    _fields_ = [
        ("cb", ctypes.c_uint32),
        ("PageFaultCount", ctypes.c_uint32),
        ("PeakWorkingSetSize", ctypes.c_size_t),
        ("WorkingSetSize", ctypes.c_size_t),
        ("QuotaPeakPagedPoolUsage", ctypes.c_size_t),
        ("QuotaPagedPoolUsage", ctypes.c_size_t),
        ("QuotaPeakNonPagedPoolUsage", ctypes.c_size_t),
        ("QuotaNonPagedPoolUsage", ctypes.c_size_t),
        ("PagefileUsage", ctypes.c_size_t),
        ("PeakPagefileUsage", ctypes.c_size_t),
    ]


def _windows_peak_memory() -> int | None:
    if sys.platform != "win32":
        return None
    kernel = ctypes.WinDLL("kernel32")
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    kernel.K32GetProcessMemoryInfo.argtypes = [
        ctypes.c_void_p,
        ctypes.POINTER(_MemoryCounters),
        ctypes.c_uint32,
    ]
    counters = _MemoryCounters(cb=ctypes.sizeof(_MemoryCounters))
    succeeded = kernel.K32GetProcessMemoryInfo(
        kernel.GetCurrentProcess(), ctypes.byref(counters), counters.cb
    )
    return int(counters.PeakWorkingSetSize) if succeeded else None
