"""lookahead: a consumer tests early whether its next stage is full, where it computes tiles behind
its dots.
"""

import pytest

import tkc
from tests.language.kernels import traced
from tests.passes.kernels import aligned, context, through
from tests.passes.stages import count
from tests.passes.test_separate_operands import streamed, summed
from tkc.ir import threads
from tkc.passes.pipeline import PIPELINE


@pytest.mark.parametrize("kernel, tests", [(summed, 0), (streamed, 1)])
def test_the_next_stage_is_tested_early_under_work_alone(kernel, tests):
    module = traced(kernel, *(aligned(tkc.float16, 2),) * 3, N=64)
    through(module, PIPELINE[-1], context("sm_90a"))
    assert count(module, threads.MbarrierTest) == tests
