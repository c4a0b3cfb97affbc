"""float8 attention whose q, k and v have scales by blocks of rows, against float64."""

import numpy as np
import pytest

from tests.kernels.checks import double
from tests.kernels.test_attention import attention, operands
from tkc import kernels


@pytest.mark.parametrize(
    "options",
    [{}, dict(causal=True), dict(causal=True, window=140), dict(softcap=3.0), dict(heads_first=0)],
    ids=lambda o: " ".join(f"{k} {v}" for k, v in o.items()) or "full",
)
@pytest.mark.parametrize("rows", [(64, 64, 64), (128, 64, 256), (0, 128, 0), (64, 0, 64)], ids=str)
def test_float8_scaled_by_blocks_of_rows(rows, options):
    """rows: of q, k and v that each scale is of, 0 where one is a head's."""
    q, k, v = operands(2, 4, 2, 150, 300, 64, 32, "float8_e4m3fn")
    draw, scales, wide = np.random.default_rng(3), [], []
    for x, each in zip((q, k, v), rows, strict=True):
        heads, n = x.shape[1:3]
        shape = (2, heads, -(-n // each)) if each else (heads,)
        scales.append(np.float32(2.0 ** draw.uniform(-2, 2, shape)))
        found = scales[-1].repeat(each, -1)[..., :n] if each else scales[-1][:, None]
        wide.append(double(x) * found[..., None])
    masks = {name: x for name, x in options.items() if name != "heads_first"}
    want, sums = attention(*wide, **masks)
    named = dict(zip(("q_scale", "k_scale", "v_scale"), scales, strict=True))
    given = [x.swapaxes(1, 2) if "heads_first" in options else x for x in (q, k, v)]
    out, lse = kernels.attention(*given, **named, with_lse=True, **options)
    out = out.swapaxes(1, 2) if "heads_first" in options else out
    assert np.linalg.norm(double(out) - want) <= 2 * 0.027 * np.linalg.norm(want)
    assert np.abs(lse - sums).max() <= 2e-3


def test_a_single_query_scaled_by_blocks_of_rows():
    q, k, v = operands(1, 2, 2, 1, 1200, 64, 64, "float8_e4m3fn")
    scale = np.float32(2.0 ** np.random.default_rng(3).uniform(-2, 2, (1, 2, 5)))
    want, _ = attention(double(q), double(k), double(v) * scale.repeat(256, -1)[..., :1200, None])
    out = kernels.attention(q, k, v, v_scale=scale)
    assert np.linalg.norm(double(out) - want) <= 2 * 0.027 * np.linalg.norm(want)
