"""File locks and peak memory, on this system and as far as others can be simulated here."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from heatproof.errors import HeatproofError
from heatproof.platform import file_lock, peak_memory

SOURCE = Path(__file__).parent.parent / "src" / "heatproof"
WITHOUT_POSIX = """
import sys
sys.modules["fcntl"] = sys.modules["resource"] = None  # importing them raises ImportError
"""


def test_a_lock_has_one_holder_at_a_time(tmp_path):
    with (
        file_lock(tmp_path / "lock", "busy"),
        pytest.raises(HeatproofError, match="busy"),
        file_lock(tmp_path / "lock", "busy"),
    ):
        pytest.fail("locked twice")
    with file_lock(tmp_path / "lock", "busy"):
        pass


def test_a_lock_is_released_after_an_error(tmp_path):
    with pytest.raises(OSError, match="mine"), file_lock(tmp_path / "lock", "busy"):
        raise BlockingIOError("mine")
    with file_lock(tmp_path / "lock", "busy"):
        pass


def test_peak_memory_is_in_bytes():
    before = peak_memory()
    if before is None:
        pytest.skip("peak memory is unknown on this system")
    block = np.ones(2**28 // 8)  # 256 MiB, touched
    after = peak_memory()
    assert block.nbytes / 2 < after < 2**40
    assert after >= before


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_memory_that_was_freed_is_used_again():
    code = """
import resource, sys
import numpy as np
from heatproof.platform import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(2**26 // 8)
begin = faults()
for _ in range(10):
    np.ones(2**26 // 8)
print(faults() - begin)
"""
    faults = {
        name: int(subprocess.check_output([sys.executable, "-c", code, name]))
        for name in ("kept", "given back")
    }
    assert faults["kept"] < faults["given back"]


def test_a_windows_lock_that_is_held_is_reported_as_such(tmp_path, monkeypatch):
    """``msvcrt.locking`` raises PermissionError where another process holds the lock."""
    held = set()

    def locking(descriptor, mode, count):
        if mode == "unlock":
            held.clear()
        elif held:
            raise PermissionError(13, "Permission denied")
        else:
            held.add(descriptor)

    fake = SimpleNamespace(locking=locking, LK_NBLCK="lock", LK_UNLCK="unlock")
    monkeypatch.setitem(sys.modules, "msvcrt", fake)
    monkeypatch.setattr(sys, "platform", "win32")
    with file_lock(tmp_path / "lock", "busy"):
        assert held
        with pytest.raises(HeatproofError, match="busy"), file_lock(tmp_path / "lock", "busy"):
            pytest.fail("locked twice")
    assert not held


def test_posix_modules_are_imported_in_one_module_only():
    importing = re.compile(r"^\s*(import|from) (fcntl|resource|pwd|grp|termios)\b", re.M)
    files = [p for p in SOURCE.rglob("*.py") if importing.search(p.read_text(encoding="utf-8"))]
    assert [p.name for p in files] == ["platform.py"]


def run_without_posix(code: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX + code], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_every_module_is_imported_without_posix_modules():
    names = [
        ".".join(["heatproof", *p.relative_to(SOURCE).with_suffix("").parts])
        for p in sorted(SOURCE.rglob("*.py"))
    ]
    modules = [n.removesuffix(".__init__") for n in names if not n.endswith("__main__")]
    run_without_posix(f"import importlib\nfor m in {modules}: importlib.import_module(m)")


@pytest.mark.slow
def test_a_run_and_a_forecast_work_without_posix_modules(tmp_path, monkeypatch):
    monkeypatch.setenv("HEATPROOF_CACHE", str(tmp_path / "cache"))  # without earlier measurements
    out = run_without_posix(
        f"""
import heatproof as hp
from heatproof.platform import peak_memory
from heatproof.cli import main

assert peak_memory() is None
spec = {{"models": ["paperbirds/resnet"], "data": {{"name": "paperbirds:test", "limit": 2}},
        "methods": ["saliency"], "protocols": ["sds"]}}
run = hp.run(spec, out={str(tmp_path / "run")!r})
assert len(run.scores) == 2
sys.argv = ["heatproof", "plan", "quickstart", "--limit", "2"]
main()
"""
    )
    assert "MB on disk" in out
    assert "GB of memory" not in out
