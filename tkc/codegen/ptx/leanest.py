"""Assembles the text of a kernel; where it spills, others that mean the same and may not: without
the number of blocks that share a multiprocessor, with less alive, for fewer blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.ptxas import Assembled
from tkc.codegen.ptx.sink import rematerialise, sink_to_uses
from tkc.ir.interface import Interface

MIN_BESIDE_TILES = 8  # registers of a thread, for addresses and counters


def leanest(ptx: str, interface: Interface, target: str) -> tuple[str, Assembled]:
    """The text that spills least, as ptxas assembles it; `ptx` itself where it does not spill."""
    return _Texts(interface, target).leanest(ptx)


class _Texts:
    """What was assembled for a target, of texts of one kernel."""

    def __init__(self, interface: Interface, target: str) -> None:
        self.threads, self.tiles = interface.threads, interface.tile_registers
        self.target = target
        self.assembled = cache(partial(ptxas.assemble, target=target))

    def leanest(self, ptx: str) -> tuple[str, Assembled]:
        blocks = ptxas.blocks_of(ptx)
        if ptxas.computes_again(ptx):
            ptx = self._untold(ptx, blocks)
        if self._will_spill(ptx, blocks) and (clean := self._clean(ptx, blocks)):
            return clean
        found = self.assembled(ptx)
        for leaner in self._leaner(ptx, blocks):
            if not found.spill_stores:
                break
            if (text := leaner(ptx)) == ptx:
                continue
            other = self.assembled(text)
            if other.spill_stores < found.spill_stores:
                ptx, found = text, other
        return ptx, found

    def _clean(self, ptx: str, blocks: int) -> tuple[str, Assembled] | None:
        """The first leaner text that does not spill."""
        for leaner in self._leaner(ptx, blocks):
            if (text := leaner(ptx)) == ptx:
                continue
            if not (found := self.assembled(text)).spill_stores:
                return text, found
        return None

    def _leaner(self, ptx: str, blocks: int) -> Iterator[Callable[[str], str]]:
        """What makes a text leaner, in order; blocks: that the plan has share a multiprocessor,
        which are given up last.
        """
        fewer: list[Callable[[str], str]] = []
        for n in ptxas.fewer_blocks(ptx, self.target, self.threads):
            fewer.append(partial(self._untold, blocks=n))
            fewer.append(partial(ptxas.roomy, threads=self.threads, blocks=n))
        is_planned = ".minnctapersm" in ptx
        if is_planned:
            yield partial(self._untold, blocks=blocks)
        else:
            yield from fewer
        yield sink_to_uses
        yield rematerialise
        yield lambda text: sink_to_uses(rematerialise(text))
        if is_planned:
            yield from fewer

    def _untold(self, text: str, blocks: int) -> str:
        """Without the number of blocks that share a multiprocessor, if so many do anyway."""
        free = self.assembled(other := ptxas.unlimited(text))
        most = ptxas.most_of(blocks, self.target, self.threads)
        return text if free.spill_stores or free.registers > most else other

    def _will_spill(self, text: str, blocks: int) -> bool:
        """Whether a text for so many blocks is known to spill: tiles leave too few registers of
        those that such a block has, and where it is not told of blocks it takes more.
        """
        most = ptxas.most_of(blocks, self.target, self.threads)
        if blocks == 1 or self.tiles + MIN_BESIDE_TILES <= most:
            return False
        return self.assembled(ptxas.unlimited(text)).registers > most
