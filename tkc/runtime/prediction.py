"""A launch's time and timeline, predicted by the compiler's model for the sizes of its arguments
(tkc/timing/predict.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tkc.errors import CompileError
from tkc.runtime.arrays import ArrayInfo
from tkc.runtime.simulate import level4_of
from tkc.runtime.specialize import given

if TYPE_CHECKING:
    from tkc.runtime.kernel import Kernel
    from tkc.timing.predict import Prediction


def predicted(
    kernel: Kernel, infos: Sequence, options: tuple, extents: tuple[int, int, int], target: str
) -> Prediction:
    """The Prediction for these arguments. Raises CompileError for a target without a model, and
    what compiling raises.
    """
    from tkc.ir.target import TARGETS
    from tkc.passes.pipeline import BEFORE_PLAN
    from tkc.passes.plan import kernel_of
    from tkc.passes.planning.cost import Work
    from tkc.passes.planning.numbers import Sizes
    from tkc.timing.predict import predict

    if target not in TARGETS:
        raise CompileError(
            f"{kernel.__name__}: times are predicted for GPUs; pass a target, such as sm_90a,"
            f" instead of {target}"
        )
    sizes, seen = (
        Sizes(
            extents,
            tuple(i.shape if isinstance(i, ArrayInfo) else i.value for i in given(infos)),
        ),
        {},
    )

    def observe(step: str, module) -> None:
        if step == BEFORE_PLAN:
            seen["work"] = Work.of(kernel_of(module), sizes)

    module = level4_of(kernel, infos, options, TARGETS[target], observe)
    return predict(module, seen["work"], TARGETS[target], sizes)
