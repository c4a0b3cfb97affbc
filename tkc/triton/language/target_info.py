"""`triton.language.target_info`: what kernels ask of the target while they are compiled."""

from __future__ import annotations

from typing import Any

from tkc.triton.language.constants import constexpr, unwrap


def current_target() -> constexpr:
    """Kernels compile for every target alike: there is none to ask for."""
    return constexpr(None)


def is_cuda() -> constexpr:
    return constexpr(True)


def cuda_capability_geq(major: Any, minor: Any = 0) -> constexpr:
    """Whether the usual target, sm_90a, has this compute capability."""
    return constexpr((unwrap(major), unwrap(minor)) <= (9, 0))


def is_hip() -> constexpr:
    return constexpr(False)
