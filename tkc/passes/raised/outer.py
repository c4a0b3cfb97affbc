"""Axes that a block lacks: a batch, a head. Its program is at one place along each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import permutations
from math import gcd

from tkc.passes.analysis.polynomials import Polynomial
from tkc.passes.raised.blocks import Axis


def outer_axes(rest: Polynomial, room: int, is_known: Callable[[Polynomial], bool]) -> list[Axis]:
    """What is left of an address as axes. One for each stride that the host knows (`is_known`);
    where there is room for fewer, what counts multiples of another stride (`chunk` in
    chunk * (%size * %stride)) is counted along that one's axis.
    """
    grouped: dict[tuple[int, ...], dict[tuple[int, ...], int]] = {}
    for monomial, coefficient in rest.terms:
        host = tuple(a for a in monomial if is_known(Polynomial((((a,), 1),))))
        own = tuple(a for a in monomial if a not in host)
        grouped.setdefault(host, {})[own] = coefficient
    while len(grouped) > room and (pair := _multiple(grouped)) is not None:
        host, finer = pair
        times = tuple((Counter(host) - Counter(finer)).elements())
        places = Polynomial.of({tuple(sorted((*m, *times))): c for m, c in grouped[host].items()})
        together = Polynomial.of(grouped[finer]) + places
        grouped = {h: terms for h, terms in grouped.items() if h != host}
        grouped[finer] = dict(together.terms)
    found = []
    for host, terms in sorted(grouped.items(), key=lambda pair: -len(pair[0])):
        step = gcd(*terms.values())
        start = Polynomial.of({m: c // step for m, c in terms.items()})
        found.append(Axis(Polynomial(((host, step),)), start, None, -1))
    return found


def _multiple(strides: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], ...] | None:
    """A product of numbers of the host, and another that divides it; None where there are none."""
    return next(
        (
            (stride, finer)
            for stride, finer in permutations(strides, 2)
            if finer and Counter(finer) < Counter(stride)
        ),
        None,
    )
