"""What a Dask worker does when it starts: it gets the pretend accelerator."""

import accelerator


def dask_setup(worker: object) -> None:
    """Register the device; Dask calls this."""
    accelerator.use_device()
