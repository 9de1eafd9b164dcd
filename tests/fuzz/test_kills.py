"""A short form of benchmarks/kills.py: some runs are killed, continued and compared."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "kills.py"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork processes")
def test_runs_that_are_killed_go_on_with_the_same_bytes():
    pytest.importorskip("distributed")
    command = [sys.executable, BENCHMARK, "--kills", "1", "--kinds", "local", "dask"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 rows lost, 0 double" in done.stdout
