"""What steps between the elements of an array say of its memory."""

from __future__ import annotations

from collections.abc import Iterable


def share_elements(axes: Iterable[tuple[int, int | None]]) -> bool:
    """Whether places of an array may share memory, as those of windows that slide do: where an axis
    does not step over all that those with shorter steps reach. axes: the step, in elements, and the
    extent of each; an extent that is not known (None) is 2 or more.
    """
    reach = 0
    steps = [(abs(stride), 2 if n is None else n) for stride, n in axes]
    for stride, n in sorted(step for step in steps if step[1] > 1):
        if stride <= reach:
            return True
        reach += (n - 1) * stride
    return False
