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
from tests.kernels.checks import close, double, launches
from tests.runtime.conftest import gpu  # noqa: F401
from tkc import kernels
from tkc.kernels.operator import Operator

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

    def view(self, dtype):
        return type(self)(self._values.view(dtype))

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


@pytest.fixture
def jax(monkeypatch):
    monkeypatch.setitem(os.environ, "JAX_PLATFORMS", "cpu")
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    return jax


def differentiable_calls(name):
    """(operator, its arguments by name) of the calls with gradients that a function makes."""
    found, run = [], Operator.run

    def noted(op, *args, **kwargs):
        if op.gradient is not None:
            names = (p.name for p in op.parameters)
            found.append((op, dict(zip(names, args, strict=False)) | kwargs))
        return run(op, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Operator, "run", noted)
        library()[name](numbers)
    return found


def gradients(op, given, result, grads):
    """Those of an operator's arguments, by name, of arrays of NumPy."""
    values = {p.name: p.default for p in op.parameters} | given | {"result": result}
    needs = {name: isinstance(x, np.ndarray) for name, x in given.items()}
    kept = SimpleNamespace(**{name: values[name] for name in op.saves}, needs=needs)
    return dict(zip((p.name for p in op.parameters), op.gradients(kept, grads), strict=True))


def is_float(x):
    return isinstance(x, np.ndarray) and "float" in x.dtype.name and x.dtype.itemsize > 1


EVERYWHERE = ["attention", "create_block_mask", "rms_norm", "rotary"]
EVERYWHERE += [
    f"{name} + {name}_backward"
    for name in ("softmax", "log_softmax", "gelu", "silu", "swiglu", "geglu")
]


@pytest.mark.parametrize("name", EVERYWHERE)
def test_jax_differentiates_what_has_a_gradient_everywhere(name, jax):
    checked = 0
    for op, given in differentiable_calls(name):
        if not op.everywhere:
            continue
        if "sums" in {p.name for p in op.parameters}:
            given = given | dict(sums=True)
        wanted = [n for n, x in given.items() if is_float(x) and n not in op.without]
        arrays = {n: jax.numpy.asarray(x) if is_array(x) else x for n, x in given.items()}

        def f(*floats, op=op, arrays=arrays, wanted=wanted):
            return op(**(arrays | dict(zip(wanted, floats, strict=True))))

        result, pull = jax.vjp(f, *(arrays[n] for n in wanted))
        outs = result if isinstance(result, tuple) else (result,)
        grads = [numbers(x.shape, seed=i).astype(x.dtype) for i, x in enumerate(outs)]
        given_back = tuple(map(jax.numpy.asarray, grads))
        got = pull(given_back if isinstance(result, tuple) else given_back[0])
        results = tuple(map(np.asarray, outs))
        want = gradients(op, given, results if isinstance(result, tuple) else results[0], grads)
        for n, x in zip(wanted, got, strict=True):
            right = np.zeros(x.shape) if want.get(n) is None else want[n]
            close(np.asarray(x), double(right), given[n].dtype.name, ulps=64)
        checked += 1
    assert checked


def is_array(x):
    return isinstance(x, np.ndarray)


def weighed(out, lse):
    return (out * np.cos(np.arange(out.size)).reshape(out.shape)).sum() + (lse * lse).sum()


@pytest.mark.parametrize("compiled", [False, True])
def test_attention_under_grad_and_jit(jax, compiled):
    np_ = jax.numpy
    q, k, v = (np_.asarray(numbers((2, h, 33, 16), seed=h)) for h in (4, 2, 1))
    v = np_.repeat(v, 2, 1)
    slopes = np_.asarray(np.array([0.1, 0.2, 0.3, 0.4], np.float32))

    def ours(q, k, v, slopes):
        def score(s, b, h, i, j):
            return s - slopes[h] * (i - j)

        given = dict(score_mod=score, mask_mod=lambda b, h, i, j: i >= j, with_lse=True)
        return weighed(*kernels.attention(q, k, v, **given))

    def plain(q, k, v, slopes):
        i, k, v = np_.arange(33), np_.repeat(k, 2, 1), np_.repeat(v, 2, 1)
        s = np_.einsum("bhid,bhjd->bhij", q, k) / 4 - slopes[:, None, None] * (i[:, None] - i)
        s = np_.where(i[:, None] >= i, s, -np.inf)
        out = np_.einsum("bhij,bhjd->bhid", jax.nn.softmax(s, -1), v)
        return weighed(out, jax.nn.logsumexp(s, -1))

    found = jax.grad(ours, (0, 1, 2, 3))
    got = (jax.jit(found) if compiled else found)(q, k, v, slopes)
    for x, want in zip(got, jax.grad(plain, (0, 1, 2, 3))(q, k, v, slopes), strict=True):
        np.testing.assert_allclose(x, want, rtol=1e-4, atol=1e-4)


def test_vmap_is_a_call_of_each(jax):
    x = jax.numpy.asarray(numbers((3, 5, 40)))
    got = jax.vmap(kernels.softmax)(x)
    np.testing.assert_array_equal(got, kernels.softmax(x))


def test_what_has_no_gradient_says_so(jax):
    x = jax.numpy.asarray(numbers((3, 40)))
    with pytest.raises(tkc.LaunchError, match=r"argmax has no gradient.*stop_gradient\(x\)"):
        jax.grad(lambda x: kernels.argmax(x).astype(float).sum())(x)
    with pytest.raises(tkc.LaunchError, match="layer_norm has a gradient for tensors of torch"):
        jax.grad(lambda x: kernels.layer_norm(x).sum())(x)
    with pytest.raises(tkc.LaunchError, match="changes .* in place"):
        jax.jit(kernels.adam_)(*[x] * 4, 1)


def test_numbers_are_not_traced(jax):
    x, w = (jax.numpy.asarray(numbers(shape)) for shape in ((4, 8), 8))
    for call, number in ((kernels.topk, 2), (kernels.softmax, 0)):
        with pytest.raises(tkc.LaunchError, match="jax traces it"):
            jax.jit(call)(x, number)
        found = jax.jit(lambda x, c=call, n=number: c(x, jax.numpy.asarray(n)))
        with pytest.raises(tkc.LaunchError, match="jax traces it"):
            found(x)
    with pytest.raises(tkc.LaunchError, match="eps is a number .* jax traces it"):
        jax.jit(kernels.rms_norm)(x, w, 1e-6)
    same = jax.jit(kernels.rms_norm, static_argnums=2)(x, w, 1e-6)
    number = jax.numpy.asarray(1e-6)
    assert np.array_equal(same, jax.jit(lambda x: kernels.rms_norm(x, w, number))(x))


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


def of_32_bits(kind):
    return np.dtype(str(np.dtype(kind)).replace("64", "32"))


@pytest.fixture
def without_64_bits(asarray, monkeypatch):
    """jax as it is where nobody sets jax_enable_x64."""
    jax = sys.modules["jax"]
    if asarray is not Array:
        jax.config.update("jax_enable_x64", False)
        yield asarray
        jax.config.update("jax_enable_x64", True)
        return
    monkeypatch.setattr(
        jax, "dtypes", SimpleNamespace(canonicalize_dtype=of_32_bits), raising=False
    )
    monkeypatch.setattr(
        sys.modules["jax.numpy"],
        "zeros",
        lambda shape, dtype, device=None: Array(np.zeros(shape, of_32_bits(dtype))),
    )
    yield asarray


@pytest.mark.parametrize(
    "call",
    [
        lambda x: kernels.topk(x, 3),
        lambda x: kernels.topk(x, 3, 0),
        lambda x: kernels.sort(x, 0),
        lambda x: kernels.sort(x),
        lambda x: kernels.argmax(x),
        lambda x: kernels.cumsum(x),
        lambda x: kernels.cumsum(x.reshape(-1)),
        lambda x: kernels.sum((x * 8).astype("int32")),
    ],
)
def test_where_jax_has_no_types_of_64_bits(call, without_64_bits):
    """Memory of kernels has them, results have what jax has for them."""
    x = numbers((5, 9001), "float32")
    for got, want in zip(flat(call(without_64_bits(x))), flat(call(x)), strict=True):
        assert got.shape == want.shape and got.dtype == of_32_bits(want.dtype)
        assert np.array_equal(host(got), want.astype(got.dtype))


def test_a_compiled_call_without_types_of_64_bits(jax):
    x = numbers((5, 31), "float32")
    jax.config.update("jax_enable_x64", False)
    try:
        for function in (lambda x: kernels.topk(x, 3)[1]), kernels.argmax:
            assert np.array_equal(jax.jit(function)(jax.numpy.asarray(x)), function(x))
    finally:
        jax.config.update("jax_enable_x64", True)


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
    # the made-up driver takes texts: nothing here is about what ptxas makes of them
    monkeypatch.setenv("TKC_PTXAS", "none")
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
    found = flat(library()[name](lambda *args, **kwargs: There(numbers(*args, **kwargs))))
    assert there.named("launch")
    with launches():  # of what is on the CPU only shapes and types are wanted
        want = flat(library()[name](numbers))
    for got, right in zip(found, want, strict=True):
        assert type(got) is There and got.shape == right.shape and got.dtype == right.dtype
