"""TKC_DEBUG=1 from the runtime's side: caches keep checked kernels apart, launches wait, and what a
check found becomes a TrapError.  (The checks: tests/codegen/ptx/test_traps.py.)
"""

import struct

import pytest

from tests.runtime.kernels import add, grid
from tests.runtime.test_jit import fresh, on_gpu
from tkc.errors import DeviceError, LaunchError, TrapError
from tkc.ir.interface import RECORD
from tkc.runtime import driver
from tkc.runtime.specialize import DEBUG_WAIT_SECONDS


def written(gpu, site: int, block=(3, 0, 0), thread=17, numbers=(400, 400)) -> None:
    """What a kernel would leave in host memory."""
    struct.pack_into("<6I", gpu.host, 0, 1, site, *block, thread)
    struct.pack_into("<2q", gpu.host, RECORD["numbers"], *numbers)


def test_checked_kernels_are_kept_apart(gpu, monkeypatch):
    """In every cache: launches made before, compiled kernels, loaded ones, entries on disk."""
    k = fresh(add)
    for asked in ("0", "1", "0", "1", "3", None, "1"):
        monkeypatch.setenv("TKC_DEBUG", asked) if asked else monkeypatch.delenv("TKC_DEBUG")
        k[grid](*on_gpu(), 256)
    assert (
        sorted(c.interface.debug for c in k._compiled.values()) == [0, 3, DEBUG_WAIT_SECONDS]
        and len(gpu.named("cuModuleLoadDataEx")) == 3
        and len(gpu.named("launch")) == 7
    )
    again = fresh(add)
    monkeypatch.delenv("TKC_DEBUG")
    assert not again.compile(*on_gpu(), 256).interface.sites
    monkeypatch.setenv("TKC_DEBUG", "1")
    found = again.compile(*on_gpu(), 256)
    assert (
        found.interface.sites
        and found.cached
        and "trap" in {p.kind for p in found.interface.parameters}
    )


def test_a_launch_may_ask_for_itself(gpu, monkeypatch):
    k = fresh(add)
    k[grid](*on_gpu(), 256, debug=True)
    k[grid](*on_gpu(), 256)
    assert [c.interface.debug for c in k._compiled.values()] == [DEBUG_WAIT_SECONDS, 0]
    monkeypatch.setenv("TKC_DEBUG", "1")
    assert (
        not fresh(add).compile(*on_gpu(), 256, debug=False).interface.debug
        and fresh(add).compile(*on_gpu(), 256, debug=60).interface.debug == 60
    )


@pytest.mark.parametrize("wrong", ["yes", "-1", "1.5"])
def test_what_is_no_number(gpu, monkeypatch, wrong):
    monkeypatch.setenv("TKC_DEBUG", wrong)
    with pytest.raises(LaunchError, match="TKC_DEBUG is 0, 1, or the seconds"):
        fresh(add)[grid](*on_gpu(), 256)
    monkeypatch.delenv("TKC_DEBUG")
    with pytest.raises(LaunchError, match="debug is expected to be"):
        fresh(add)[grid](*on_gpu(), 256, debug=wrong)


def test_a_checked_launch_waits_and_passes_its_record(gpu, monkeypatch):
    monkeypatch.setenv("TKC_DEBUG", "1")
    k = fresh(add)
    i = k.compile(*on_gpu(), 256).interface
    gpu.sizes = [p.size for p in i.parameters]
    k[grid](*on_gpu(), 256)
    assert gpu.mode == "global" and [
        c[1] for c in gpu.named("cuThreadExchangeStreamCaptureMode")
    ] == ["CU_STREAM_CAPTURE_MODE_RELAXED", "global"]
    given = dict(zip((p.kind for p in i.parameters), gpu.named("launch")[0][-1], strict=False))
    assert int.from_bytes(given["trap"], "little") == gpu.named("cuMemHostGetDevicePointer")[0][
        1
    ] + (1 << 50)
    assert [c[0] for c in gpu.calls][-3:] == [
        "launch",
        "cuStreamIsCapturing",
        "cuStreamSynchronize",
    ]
    gpu.capturing = 1
    k[grid](*on_gpu(), 256)
    assert len(gpu.named("cuStreamSynchronize")) == 1


def test_what_trapped_is_named(gpu, monkeypatch):
    monkeypatch.setenv("TKC_DEBUG", "1")
    k = fresh(add)
    k[grid](*on_gpu(), 256)
    sites = next(iter(k._compiled.values())).interface.sites
    written(gpu, next(n for n, s in enumerate(sites) if s.text.startswith("reads")))
    gpu.errors["cuStreamSynchronize"] = [719]
    with pytest.raises(
        TrapError, match="reads .* at 400 bytes from the first of argument x"
    ) as found:
        k[grid](*on_gpu(), 256)
    e = found.value
    assert (e.kernel, e.block, e.thread) == ("add", (3, 0, 0), 17) and e.location.file.endswith(
        "kernels.py"
    )
    shown = str(e).splitlines()
    assert (
        "in add, block (3, 0, 0), thread 17" in shown[0]
        and "tkc.load(x.ptr + i" in shown[2]
        and shown[3].strip("^ ") == ""
    )
    with pytest.raises(DeviceError, match="reads .*dead until the process ends") as later:
        k[grid](*on_gpu(), 256)
    assert len(str(later.value).splitlines()) == 1


def test_another_death_is_not_blamed_on_a_check(gpu, monkeypatch):
    monkeypatch.setenv("TKC_DEBUG", "1")
    k = fresh(add)
    k[grid](*on_gpu(), 256)
    gpu.errors["cuCtxSynchronize"] = [700]
    with pytest.raises(DeviceError, match="CUDA_ERROR_700") as found:
        driver.synchronize()
    assert not isinstance(found.value, TrapError)
