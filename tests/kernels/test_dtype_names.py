"""What the library remembers of element types is apart by the arrays' type."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tkc.kernels import arrays


@dataclass
class Tensor:
    """A stand-in for another library's array."""

    dtype: str


def test_names_of_one_library_are_not_among_anothers():
    # torch.compile of a call refused a table with NumPy's types, once NumPy had called before
    given = np.zeros(1, ml_dtypes.bfloat16)
    assert arrays.dtype_of(given) == "bfloat16"
    assert arrays.dtype_of(Tensor("torch.float16")) == "float16"
    assert arrays._names[Tensor] == {"torch.float16": "float16"}
    assert all(isinstance(t, np.dtype) for t in arrays._names[np.ndarray])
