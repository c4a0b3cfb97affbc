"""The library with arrays of jax, whose reshape, transposes and slices are copies: the results are
those of NumPy's arrays, bit for bit. With jax where it is installed, and always with a stand-in
that has its rules."""

import itertools
import os
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import tkc
from tests.gpu.sanitized import flat, library, numbers
from tests.kernels.checks import close, double
from tests.runtime.conftest import gpu  # noqa: F401
from tkc import kernels

# functions that change an argument in place: steps of decoding change a state
IN_PLACE = {name for name in library() if name.endswith(("_", "_step"))}


class Array:
    """An array that never changes and has no views."""

    __module__ = "jaxlib.stand_in"
    sharding = None

    def __init__(self, values):
        self._values = np.array(values, order="C")
        self._values.flags.writeable = False

    shape, dtype, ndim, size = (
        property(lambda self, name=name: getattr(self._values, name))
        for name in ("shape", "dtype", "ndim", "size")
    )

    @property
    def T(self):
        return type(self)(self._values.T)

    @property
    def __array_interface__(self):
        return self._values.__array_interface__

    def __neg__(self):
        return type(self)(-self._values)

    def __abs__(self):
        return type(self)(abs(self._values))

    def __mul__(self, other):
        return type(self)(self._values * getattr(other, "_values", other))

    def __getitem__(self, at):
        return type(self)(self._values[host(at) if isinstance(at, Array) else at])

    def reshape(self, *shape):
        return type(self)(self._values.reshape(*shape))

    def swapaxes(self, a, b):
        return type(self)(self._values.swapaxes(a, b))

    def transpose(self, *axes):
        return type(self)(self._values.transpose(*axes))

    def argsort(self, stable=False):
        return type(self)(self._values.argsort(kind="stable" if stable else None))

    def astype(self, dtype):
        return type(self)(self._values.astype(dtype))

    def devices(self):
        return [SimpleNamespace(platform="cpu")]

    def unsafe_buffer_pointer(self):
        return self._values.ctypes.data

    def block_until_ready(self):
        return self


def host(x) -> np.ndarray:
    return x._values if isinstance(x, Array) else np.asarray(x)


def stand_in() -> dict[str, ModuleType]:
    jax, names = ModuleType("jax"), ModuleType("jax.numpy")
    jax.Array, jax.numpy, names.asarray = Array, names, Array
    names.zeros, names.full = (
        (lambda shape, dtype, device=None: Array(np.zeros(shape, dtype))),
        lambda shape, value, dtype, device=None: Array(np.full(shape, value, dtype)),
    )
    names.broadcast_to = lambda x, shape: Array(np.broadcast_to(x._values, shape))
    return {"jax": jax, "jax.numpy": names}


@pytest.fixture(params=["a stand-in", "jax"])
def asarray(request, monkeypatch):
    """Makes an array of one of NumPy."""
    if request.param == "jax":
        monkeypatch.setitem(os.environ, "JAX_PLATFORMS", "cpu")
        jax = pytest.importorskip("jax")
        jax.config.update("jax_enable_x64", True)
        return jax.numpy.asarray
    for name, module in stand_in().items():
        monkeypatch.setitem(sys.modules, name, module)
    return Array


def test_what_jax_traces_is_an_error(monkeypatch):
    """Its gradients would be silently nothing."""

    class Tracer(Array):
        __module__ = "jax.stand_in"

    modules = stand_in()
    modules["jax"].core = SimpleNamespace(Tracer=Tracer)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(tkc.LaunchError, match="softmax.*jax.grad.*custom_vjp"):
        kernels.softmax(Tracer(np.zeros((3, 4), np.float32)))
    assert type(kernels.softmax(Array(np.zeros((3, 4), np.float32)))) is Array


@pytest.mark.parametrize("name", [name for name in library() if name not in IN_PLACE])
def test_the_library(name, asarray):
    found, want = (
        flat(library()[name](lambda *args, **kwargs: asarray(numbers(*args, **kwargs)))),
        flat(library()[name](numbers)),
    )
    for got, right in zip(found, want, strict=True):
        assert (
            type(got) is type(asarray(np.zeros(1)))
            and got.shape == right.shape
            and got.dtype == right.dtype
        )
        close(
            host(got),
            double(right),
            "bfloat16" if right.dtype.itemsize == 2 else "float32",
            ulps=16,
        )


@pytest.mark.parametrize(
    "call",
    [
        lambda t, x: t.softmax(x, 0),
        lambda t, x: t.softmax(x, 1),
        lambda t, x: t.cumsum(x, 1),
        lambda t, x: t.topk(x, 3, 0),
        lambda t, x: t.layer_norm(x),
        lambda t, x: t.quantize(x)[1],
        lambda t, x: t.transpose(x),
        lambda t, x: t.matmul(x, x.swapaxes(1, 2)),
        lambda t, x: t.matmul(x[0], x[1].T),
        lambda t, x: t.matmul(x[0, 0], x[1].T),
        lambda t, x: t.matmul(x[0], x[1, 0]),
        lambda t, x: t.matmul(x, x[0].T),
        lambda t, x: t.matmul(x[:, None], x[0].T),
        lambda t, x: t.attention(x[None], x[None], x[None], heads_first=False),
        lambda t, x: t.attention(x[None], x[None], x[None], causal=True, with_lse=True),
    ],
)
def test_axes_and_views(call, asarray):
    """What is computed along another axis, in other orders of axes, as a vector's product."""
    x = numbers((3, 5, 16), "float32")
    for got, want in zip(flat(call(kernels, asarray(x))), flat(call(kernels, x)), strict=True):
        assert got.shape == want.shape and np.array_equal(host(got), want)


@pytest.mark.parametrize("name", sorted(IN_PLACE))
def test_nothing_is_changed_in_place(name, asarray):
    with pytest.raises(tkc.LaunchError, match="arrays of jax never change"):
        library()[name](lambda *args, **kwargs: asarray(numbers(*args, **kwargs)))


def test_views_of_a_gpus_memory_are_never_looked_at(monkeypatch):
    """Addresses, extents and strides of reshaped, turned and sliced views; the array of a view
    whose axes are in another order.
    """
    from tkc.kernels import views

    for name, module in stand_in().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(Array, "devices", lambda self: [SimpleNamespace(platform="gpu")])
    monkeypatch.setattr(Array, "unsafe_buffer_pointer", lambda self: 1 << 20)  # nothing is there
    view = views.zeros(Array(np.zeros(1)), (4, 6, 8), np.dtype("float32"))
    part = view.reshape(24, 8)[6:].T
    assert part.__cuda_array_interface__ == {
        "shape": (8, 18),
        "strides": (4, 32),
        "typestr": "<f4",
        "data": ((1 << 20) + 6 * 32, False),
        "version": 3,
    }
    assert (
        part.whole is view.whole
        and views.given(view) is view.whole
        and views.given(view.reshape(24, 8)).shape == (24, 8)
    )
    assert views.given(view.transpose(2, 0, 1)).shape == (8, 4, 6)
    with pytest.raises(RuntimeError, match="is not all of"):
        views.given(part)


class There(Array):
    """Memory of a made-up GPU: an address."""

    __module__ = "jaxlib.stand_in"
    addresses = itertools.count(0x7100_0000_0000, 1 << 24)

    def __init__(self, values):
        super().__init__(values)
        self.pointer, self.waited = next(self.addresses), False

    @property
    def __array_interface__(self):
        raise AttributeError

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "strides": None,
            "typestr": self.dtype.str,
            "data": (self.pointer, True),
            "version": 3,
        }

    def devices(self):
        return [SimpleNamespace(platform="gpu")]

    def unsafe_buffer_pointer(self):
        return self.pointer

    def block_until_ready(self):
        self.waited = True
        return self


@pytest.fixture
def there(gpu, monkeypatch):  # noqa: F811
    modules = stand_in()
    modules["jax.numpy"].zeros, modules["jax.numpy"].full = (
        lambda shape, dtype, device=None: There(np.zeros(shape, dtype)),
        lambda shape, value, dtype, device=None: There(np.full(shape, value, dtype)),
    )
    modules["jax.numpy"].broadcast_to = lambda x, shape: There(np.broadcast_to(x._values, shape))
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return gpu


def test_launches_on_a_gpu(there):
    """Kernels get the addresses of jax's arrays, wait for what is computed, and are waited for."""
    there.sizes = [4, 8, 4, 8]  # a length and an address of each array
    out = kernels.gelu(x := There(np.zeros((4, 300), np.float32)))
    ((*_, given),) = there.named("launch")
    # of x's reshaped copy
    assert (
        type(out) is There
        and out.shape == (4, 300)
        and given[3] == out.pointer.to_bytes(8, "little")
        and given[1] != x.pointer.to_bytes(8, "little")
    )
    assert out.waited and there.named("cuCtxSynchronize")


@pytest.mark.parametrize("name", [name for name in library() if name not in IN_PLACE])
def test_the_library_looks_at_no_memory_of_a_gpu(name, there):
    """There is none behind these addresses."""
    found, want = (
        flat(library()[name](lambda *args, **kwargs: There(numbers(*args, **kwargs)))),
        flat(library()[name](numbers)),
    )
    assert there.named("launch")
    for got, right in zip(found, want, strict=True):
        assert type(got) is There and got.shape == right.shape and got.dtype == right.dtype
