"""Functions of tkc.kernels on a GPU give what they give on the CPU; the same calls go through compute-sanitizer (sanitize.py)."""
import numpy as np
import pytest

from tests.gpu.device import back, on_gpu
from tests.gpu.sanitized import flat, library, numbers


@pytest.mark.parametrize("name", library())
def test_as_on_the_cpu(name):
    torch = pytest.importorskip("torch")
    call = library()[name]
    want, got = flat(call(numbers)), flat(call(lambda *args, **kwargs: on_gpu(numbers(*args, **kwargs))))
    torch.cuda.synchronize()
    assert len(want) == len(got)
    for w, g in zip(want, got):
        g = back(g, w.dtype)
        if w.dtype.kind in "iub": np.testing.assert_array_equal(g, w)
        else: np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), rtol=4e-2 if w.dtype.itemsize == 2 else 1e-3, atol=np.abs(w.astype(np.float64)).max(initial=0) * (1e-2 if w.dtype.itemsize == 2 else 2e-3))
