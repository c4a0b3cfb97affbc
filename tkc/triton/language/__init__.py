"""`triton.language`: what a Triton kernel can say, as a table of where each name is."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# module -> names; `ours=theirs` where the name in the module differs, because it is also a
# builtin's
_WHERE = {
    "constants": (
        "constexpr const constexpr_type tuple=tuple_ CONSTEXPR_0 _log2=log2"
        " _is_power_of_two=is_power_of_two"
    ),
    "control": "range=loop_range static_range",
    "creation": (
        "TRITON_MAX_TENSOR_NUMEL arange assume cdiv full full_like num_programs program_id"
        " static_assert static_print swizzle2d where zeros zeros_like"
    ),
    "hints": (
        "async_task async_tasks condition device_assert device_print max_constancy"
        " max_contiguous multiple_of"
    ),
    "inline": "inline_asm_elementwise",
    "mathematics": (
        "PropagateNan abs=abs_ add ceil clamp cos div_rn erf exp exp2 fdiv floor fma log log2"
        " maximum minimum mul rsqrt sigmoid sin sqrt sqrt_rn sub umulhi"
    ),
    "memory": (
        "advance atomic_add atomic_and atomic_cas atomic_max atomic_min atomic_or atomic_xchg"
        " atomic_xor debug_barrier load load_tensor_descriptor make_block_ptr"
        " make_tensor_descriptor store store_tensor_descriptor tensor_descriptor"
        " tensor_descriptor_base=tensor_descriptor"
    ),
    "products": "dot dot_scaled",
    "random": (
        "pair_uniform_to_normal philox philox_impl rand rand4x randint randint4x randn randn4x"
        " uint_to_uniform_float"
    ),
    "reductions": (
        "argmax argmin associative_scan bitonic_merge cumprod cumsum histogram map_elementwise"
        " max=max_ min=min_ reduce reduce_or softmax sort sum=sum_ topk xor_sum"
    ),
    "shapes": (
        "broadcast broadcast_to cat expand_dims flip gather interleave join permute ravel reshape"
        " split squeeze trans unsqueeze view"
    ),
    "types": (
        "bfloat16 block_type dtype float16 float32 float64 float8e4b15 float8e4b8 float8e4nv"
        " float8e5 float8e5b16 get_int_dtype int1 int16 int32 int64 int8 pi32_t pointer_type"
        " str_to_ty uint16 uint32 uint64 uint8 void"
    ),
    "values": "cast tensor to_tensor",
}
_NAMES = {
    name.partition("=")[0]: (module, name.rpartition("=")[2])
    for module, names in _WHERE.items()
    for name in names.split()
}
# modules under Triton's names
_MODULES = {
    "math": "mathematics",
    "random": "random",
    "extra": "extra",
    "target_info": "target_info",
} | dict.fromkeys(("core", "standard", "semantic"), "")
__all__ = [*_NAMES, "math", "extra"]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        module, attribute = _NAMES[name]
        found = getattr(import_module(f"{__name__}.{module}"), attribute)
    elif name in _MODULES:
        found = import_module(f"{__name__}.{_MODULES[name]}".rstrip("."))
    elif name.startswith("__"):
        raise AttributeError(name)
    else:
        raise AttributeError(f"tkc.triton.language has no `{name}`")
    globals()[name] = found
    return found


def import_all() -> None:
    """Imports every module of the language, which makes the methods of tensors."""
    for module in _WHERE:
        import_module(f"{__name__}.{module}")


def __dir__() -> list[str]:
    return sorted(__all__)
