"""The recurrences of tkc.kernels at the widths of models, a GPU beside the CPU back end.

At the small widths of the other tests a block has few registers, one warp holds what four share at
64 or 128 channels, and ptxas joins less. A result that was silently wrong on a GPU was right at 32
channels.
"""

import numpy as np
import pytest

from tests.gpu.recurrences import MODELS, library
from tests.gpu.sanitized import flat, numbers

pytestmark = pytest.mark.gpu
# Both sides round operands of dots, what a program hands to another one, and results to bfloat16,
# of which one rounding is off by 2^-9 at most, and by 2^-10 in the norm. They round other sums of
# the same numbers, since their blocks differ, so that each rounding counts twice, and a gradient
# goes through some ten: sqrt(2 * 10) * 2^-10 = 0.0044. Inverses of triangular blocks, of which the
# delta rules have one for each 64 positions, multiply that by their norm, which is below 4 here.
TOLERANCE = 2e-2


def relative(got: np.ndarray, want: np.ndarray) -> float:
    """The norm of the difference, of that of what is expected."""
    got, want = (x.astype(np.float64) for x in (got, want))
    return float(np.linalg.norm(got - want) / (np.linalg.norm(want) + 1e-30))


def near(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    """Whether results are those of the other side, each finite and within the tolerance."""
    assert len(got) == len(want)
    errors = [relative(a, b) for a, b in zip(got, want, strict=True)]
    assert max(errors) <= TOLERANCE, [f"{e:.1e}" for e in errors]


@pytest.mark.parametrize("of", MODELS, ids=lambda of: str(of.width))
@pytest.mark.parametrize("name", library())
def test_a_gpu_gives_what_the_cpu_gives(name, of):
    torch = pytest.importorskip("torch")
    from tests.gpu.device import on_gpu

    def give(*args, **kwargs):
        return on_gpu(numbers(*args, **kwargs))

    call = library()[name]
    got = [a.double().cpu().numpy() for a in flat(call(give, of)) if isinstance(a, torch.Tensor)]
    near(got, [np.asarray(a) for a in flat(call(numbers, of))])
