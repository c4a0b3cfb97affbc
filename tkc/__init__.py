"""tkc: tile kernels in Python, compiled to PTX. The public names, nothing else.

A name is imported when it is first used, so that importing tkc (and a launch that finds its kernel
in the cache) costs nothing.
"""

from __future__ import annotations

from importlib import import_module

inf, nan = float("inf"), float("nan")

# module -> names; `ours=theirs` where the name in the module differs, because it is also a
# builtin's
_WHERE = {
    "tkc.errors": (
        "CacheError CompileError DeviceError Error ExportError LaunchError PeerError TrapError"
        " TuningError VerifyError"
    ),
    "tkc.runtime.jit": "jit target_of",
    "tkc.runtime.handed": "handed",
    "tkc.runtime.simulate": "simulate_ranks",
    "tkc.runtime.peers": "peers=Peers",
    "tkc.runtime.tracebacks": "hide_own_frames",
    "tkc.runtime.launch_cache": "repeated launch_key",
    "tkc.ir.target": "target",
    "tkc.passes.planning.attention": "AttentionBlock AttentionLaunch attention_block",
    "tkc.passes.planning.products": "Product product_blocks",
    "tkc.runtime.autotune": "autotune Config",
    "tkc.runtime.export": "export",
    "tkc.language.names": "constexpr",
    "tkc.language.dtypes": (
        "bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64"
        " float8_e4m3 float8_e5m2"
    ),
    "tkc.language.values": "pointer=Pointer",
    "tkc.language.arrays": "array",
    "tkc.language.peers": "rank world signal wait",
    "tkc.language.control": "range=range_ static_range",
    "tkc.language.memory": (
        "load store atomic_add atomic_max atomic_min atomic_and atomic_or atomic_xor atomic_xchg"
        " atomic_cas"
    ),
    "tkc.language.operations": (
        "program_id num_programs arange zeros full where maximum minimum fmax fmin fma cdiv div_rn"
        " div_trunc rem_trunc pow=pow_"
        " abs=abs_ exp exp2 expm1 log log2 log1p sqrt rsqrt sin cos tanh erf floor ceil"
        " round=round_ trunc isnan isinf sigmoid softmax dot sum=sum_ max=max_ min=min_ nanmax"
        " nanmin prod argmax argmin any=any_ all=all_ xor_sum cumsum cumprod sort topk histogram"
        " reshape permute broadcast_to join split cat interleave flip gather assume multiple_of"
        " print=print_ device_assert static_assert static_print"
        " wait_dependencies launch_dependents"
    ),
    "tkc.language.special": (
        "tan asin acos atan atan2 sinh cosh asinh acosh atanh cbrt log10 hypot fmod erfc erfinv"
        " lgamma nextafter copysign"
    ),
    "tkc.language.combining": "reduce scan",
    "tkc.language.derivative": "vjp",
    "tkc.runtime.lifting": "lambda_lift",
    "tkc.language.inline": "inline_ptx",
    "tkc.language.random": "philox rand randint randn",
}
_NAMES = {
    name.partition("=")[0]: (module, name.rpartition("=")[2])
    for module, names in _WHERE.items()
    for name in names.split()
}
__all__ = ["inf", "nan", *_NAMES]


def __getattr__(name: str):
    if name in _NAMES:
        module, attribute = _NAMES[name]
        globals()[name] = found = getattr(import_module(module), attribute)
        return found
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("tkc")
        except PackageNotFoundError:
            # a checkout in the path that was never installed
            return "0+checkout"
    if name.startswith("__"):
        raise AttributeError(name)
    from tkc.language.names import suggestion

    raise AttributeError(f"tkc has no `{name}`{suggestion(name, __all__)}")


def __dir__():
    return sorted(__all__)
