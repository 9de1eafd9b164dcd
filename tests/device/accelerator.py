"""Another device for tests: the pretend accelerator ``fake``, or what HEATPROOF_DEVICE names.

`accelerator.cpp` says what the pretend accelerator has. It is compiled once by
`torch.utils.cpp_extension`, in about half a minute, and registered as the device ``fake``.
"""

from __future__ import annotations

import os
import shutil
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

NAME = os.environ.get("HEATPROOF_DEVICE", "fake")
IS_FAKE = NAME.partition(":")[0] == "fake"


def why_missing() -> str | None:
    """Return why the pretend accelerator cannot be built here; None if it can."""
    if not IS_FAKE:
        return None
    compiler = os.environ.get("CXX", "c++")
    missing = [tool for tool in (compiler, "ninja") if shutil.which(tool) is None]
    return f"the pretend accelerator needs {' and '.join(missing)}" if missing else None


@cache
def extension() -> Any:
    """Build the pretend accelerator, and register it with PyTorch."""
    built = cpp_extension.load(
        "heatproof_accelerator", [str(Path(__file__).with_suffix(".cpp"))], extra_cflags=["-O1"]
    )
    module = types.ModuleType("torch.fake")
    functions = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": built.device_count,
        "current_device": built.current_device,
        "set_device": built.set_device,
        "synchronize": lambda device=None: built.synchronize(),
        "memory_allocated": torch.accelerator.memory_allocated,
        "max_memory_allocated": torch.accelerator.max_memory_allocated,
        "reset_peak_memory_stats": torch.accelerator.reset_peak_memory_stats,
        "_is_in_bad_fork": lambda: False,
        # all draws come from the generator of the processor
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
    }
    for name, function in functions.items():
        setattr(module, name, function)
    torch.utils.rename_privateuse1_backend("fake")
    torch._register_device_module("fake", module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    return built


def use_device() -> str:
    """Return the name of the device to test on, after building it if it is the pretend one."""
    if IS_FAKE:
        extension()
    torch.empty(0, device=NAME)
    return NAME


@contextmanager
def memory_for(extra: int, index: int = 0) -> Iterator[None]:
    """Let a device of the pretend accelerator hold so many bytes more than now."""
    held = torch.accelerator.memory_allocated(index)
    extension().set_limit(index, held + extra)
    try:
        yield
    finally:
        extension().set_limit(index, None)
