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
from typing import IO, TYPE_CHECKING, Any

from heatproof.errors import HeatproofError

if TYPE_CHECKING:
    import torch


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


def reset_peak_memory(device: torch.device) -> bool:
    """Forget the most memory that was held so far; return whether it is measured at all.

    Of this process it is measured on Linux; what the C library has kept of freed memory is given
    back before, where it can (glibc), so that it is not taken for memory in use.
    """
    if accelerator := _accelerator(device):
        accelerator.reset_peak_memory_stats(device)
        return True
    if device.type != "cpu" or sys.platform != "linux":
        return False
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def memory_in_use(device: torch.device) -> int | None:
    """Return the bytes that are held on a device now; None where it is unknown."""
    if accelerator := _accelerator(device):
        return accelerator.memory_allocated(device)
    return _bytes_of_process("VmRSS")


def peak_memory_since(device: torch.device) -> int | None:
    """Return the most bytes that were held since `reset_peak_memory`; None where it is unknown."""
    if accelerator := _accelerator(device):
        return accelerator.max_memory_allocated(device)
    return _bytes_of_process("VmHWM")


def _accelerator(device: torch.device) -> Any:
    """Return PyTorch's module of a device, if it counts the memory of the device; else None."""
    import torch

    module = torch.get_device_module(device)
    return module if hasattr(module, "max_memory_allocated") else None


def _bytes_of_process(name: str) -> int | None:
    """Return an entry of Linux' status of this process, which is in KiB."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return next((1024 * int(kib) for kib in found), None)


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
