"""tkc: tile kernels in Python, compiled to PTX. The public names, nothing else."""
from math import inf, nan

from tkc.errors import CacheError, CompileError, DeviceError, Error, ExportError, LaunchError, VerifyError
from tkc.language.arrays import array
from tkc.language.control import range_ as range, static_range
from tkc.language.dtypes import (
    bfloat16, bool_, float8_e4m3, float8_e5m2, float16, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
)
from tkc.language.memory import atomic_add, atomic_and, atomic_cas, atomic_max, atomic_min, atomic_or, atomic_xchg, atomic_xor, load, store
from tkc.language.names import constexpr, suggestion
from tkc.language.operations import (
    abs_ as abs, all_ as all, any_ as any, arange, argmax, argmin, assume, broadcast_to, cat, cdiv, ceil, cos, cumprod, cumsum, device_assert, div_rn, dot, erf, exp,
    exp2, expm1, flip, floor, fma, full, histogram, interleave, isinf, isnan, join, log, log1p, log2, max_ as max, maximum, min_ as min, minimum, multiple_of,
    num_programs, permute, pow_ as pow, print_ as print, prod, program_id, reduce, reshape, round_ as round, rsqrt, scan, sigmoid, sin, softmax, sort, split, sqrt,
    static_assert, static_print, sum_ as sum, tanh, topk, trunc, where, xor_sum, zeros,
)
from tkc.language.random import philox, rand, randint, randn
from tkc.language.values import Pointer as pointer

_RUNTIME = {"jit": "tkc.runtime.jit"}           # imported when first used: the language works without a device


def __getattr__(name: str):
    if name in _RUNTIME:
        from importlib import import_module
        return getattr(import_module(_RUNTIME[name]), name)
    raise AttributeError(f"tkc has no `{name}`{suggestion(name, [n for n in globals() if not n.startswith('_')])}")
