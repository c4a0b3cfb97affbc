"""What a run of PTX may end with instead of results."""

from __future__ import annotations

import numpy as np

from tkc.ir.interface import Site
from tkc.sim.errors import SimulationError


class Fault(SimulationError):
    """The program did what the hardware does not do, or what ours never do: a misaligned access,
    one outside memory, a register that nobody wrote, a wait without end.
    """


class Unknown(SimulationError):
    """An instruction, or a parameter, that this simulator does not know."""


class Trapped(Exception):
    """A check of TKC_DEBUG failed: its site, the thread, and the sentence with its numbers."""

    def __init__(self, site: Site, thread: int, numbers: list[int]):
        self.site, self.thread, self.said = site, thread, site.text.format(*numbers)
        super().__init__(self.said)


def require(holds: bool | np.bool_, message: str) -> None:
    """Raises Fault with the message where a condition does not hold."""
    if not holds:
        raise Fault(message)


def shortened(line: str) -> str:
    """An instruction's line for a sentence, of at most 120 characters."""
    return line if len(line) <= 120 else f"{line[:80]} … {line[-36:]}"
