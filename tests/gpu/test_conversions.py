"""Every pair of layouts that can meet, converted on a GPU: some ten thousand, a kernel for each
layout converted from.
"""

import numpy as np
import pytest

from tests.gpu.device import back, on_gpu
from tests.passes import conversions as C
from tkc.runtime import driver
from tkc.runtime.launch import launch

CASES = list(C.cases())
PARTS = 256


@pytest.mark.parametrize("part", range(PARTS))
def test_pairs_convert(part):
    import torch

    for case in CASES[part::PARTS]:
        names = C.targets(*case)
        program = C.compiled(C.module(*case))
        x, out, want = C.arrays(case[0], case[1], len(names))
        given, got = on_gpu(x), on_gpu(out)
        i = program.interface
        launch(
            i,
            driver.load(program.text.encode(), i.entry, 0, i.shared_bytes),
            [given, got],
            (1,),
            torch.cuda.current_stream().cuda_stream,
        )
        torch.cuda.synchronize()
        got = back(got, out.dtype)
        for k, name in enumerate(names):
            np.testing.assert_array_equal(got[k], want[k], err_msg=f"{case} to {name}")
