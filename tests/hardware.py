"""What this machine has for tests to run on."""

from functools import cache


@cache
def no_gpu() -> str | None:
    """Why tests marked gpu cannot run here, None where they can."""
    from tkc.errors import DeviceError
    from tkc.runtime import driver

    try:
        return None if driver.count() else "no GPU in this machine"
    except DeviceError as e:
        return str(e)
