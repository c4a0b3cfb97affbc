"""The recorded kernels: a name and a function that gives PTX for each.

They come from the examples, the library's functions, the forms of attention and products that the
library chooses, the plans of the measured tables, and the kernels on which the passes are tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np

from benchmarks.harness import example
from tests.gpu.sanitized import examples, library, numbers
from tests.kernels import test_attention, test_attention_backward, test_matmul
from tests.kernels.checks import launches
from tests.passes import kernels as pass_kernels
from tests.passes import test_product_types
from tests.passes.kernels import context, through
from tkc.codegen.ptx.emit import emit
from tkc.ir.target import target as target_named
from tkc.passes.pipeline import PIPELINE

TARGETS = ("sm_80", "sm_89", "sm_90a")
Cases = Iterator[tuple[str, Callable[[], str]]]


def _of_examples() -> Cases:
    for name in examples("cpu"):
        for i, (kernel, arguments, _) in enumerate(example(name).kernels()):
            for target in TARGETS:
                yield (
                    f"examples/{name}/{i}/{target}",
                    lambda k=kernel, a=arguments, t=target: k.compile(**a, target=t).ptx,
                )


def _of_launches(name: str, call: Callable[[], object], targets: tuple[str, ...]) -> Cases:
    with launches() as found:
        call()
    for i, (kernel, args, kwargs) in enumerate(found):
        for target in targets:
            yield (
                f"{name}/{i}/{target}",
                lambda k=kernel, a=args, o=kwargs, t=target: k.compile(*a, target=t, **o).ptx,
            )


def _of_library() -> Cases:
    np.random.seed(0)
    for name, call in library().items():
        yield from _of_launches(f"kernels.{name}", lambda c=call: c(numbers), TARGETS)


def _chosen_for(name: str, call: Callable[[], object], target: str) -> Cases:
    """What the library launches for arrays on a GPU, as which it takes those of NumPy."""
    import tkc

    saved = tkc.target_of
    tkc.target_of = lambda x: target
    try:
        yield from list(_of_launches(name, call, (target,)))
    finally:
        tkc.target_of = saved


def _of_attention() -> Cases:
    for name, call in test_attention.FORMS.items():
        for target in ("sm_80", "sm_90a"):
            if target == "sm_90a" or "warpgroups" not in name:
                yield from _chosen_for(f"attention/{name}", call, target)
    for name, of_width in test_attention_backward.FORMS.items():
        yield from _chosen_for(f"attention backward/{name}", lambda f=of_width: f(128), "sm_90a")


def _of_tables() -> Cases:
    product = test_matmul._product.kernel
    shapes = ("bf16[8192, 4096]", "bf16[4096, 8192]", "bf16[8192]", "bf16[8192, 8192]")
    for config in sorted(test_matmul.LARGE, key=repr):
        for activation in (None, "gelu"):
            yield (
                f"tables/{config!r}/{activation}",
                lambda c=config, a=activation: (
                    product.compile(*shapes, ACTIVATION=a, **dict(c.items), target="sm_90a").ptx
                ),
            )


def _emitted(module, target: str, options: dict) -> str:
    through(module, PIPELINE[-1], context(target, **options))
    return emit(module, target_named(target)).text


def _of_passes() -> Cases:
    for name, case in pass_kernels.CASES.items():
        for target in TARGETS:
            yield (
                f"passes/{name}/{target}",
                lambda c=case, t=target: _emitted(c.module(), t, c.options),
            )
    for case in test_product_types.CASES:
        yield (
            f"product types/{case.name}",
            lambda c=case: (
                emit(
                    test_product_types.compiled(c)[0][PIPELINE[-1]].clone(), target_named("sm_90a")
                ).text
            ),
        )


@cache
def cases() -> dict[str, Callable[[], str]]:
    """Every recorded kernel by name. Asked for once: what the library launches depends on earlier
    calls.
    """
    sources = (_of_examples, _of_library, _of_attention, _of_tables, _of_passes)
    return {name: ptx for source in sources for name, ptx in source()}
