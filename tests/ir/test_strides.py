"""Whether places of an array share memory, beside the places themselves."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tkc.ir.strides import share_elements

AXES = st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 4)), max_size=4)


def places(axes):
    return [
        sum(i * stride for i, (stride, _) in zip(at, axes, strict=True))
        for at in product(*(range(n) for _, n in axes))
    ]


@given(AXES)
def test_what_is_said_to_be_apart_is(axes):
    if not share_elements(axes):
        found = places(axes)
        assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    "axes, shared",
    [
        ([(4, 3), (1, 4)], False),
        ([(1, 4), (4, 3)], False),
        ([(3, 3), (1, 4)], True),
        ([(0, 2), (1, 4)], True),
        ([(0, 1), (1, 4)], False),
        ([(-4, 3), (-1, 4)], False),
        ([(1, 2), (2, 2), (3, 2)], True),  # no two axes alone
        ([(1, None), (2, None)], False),
        ([(1, None), (1, None)], True),
        ([(1, None), (2, None), (3, 2)], True),
        ([], False),
    ],
    ids=str,
)
def test_steps(axes, shared):
    assert share_elements(axes) == shared
