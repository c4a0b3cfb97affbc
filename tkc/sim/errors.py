"""What a run in the simulator may end with."""

from __future__ import annotations

from xdsl.ir import Operation

from tkc.errors import Error, Location
from tkc.ir.text import location_of


class SimulationError(Error):
    """A program did something that has no meaning. operation: which one did it; location: its place
    in the user's source (or None); agents: the warps that did it, where there are threads.
    """

    def __init__(self, message: str, operation: Operation | None = None):
        self.message, self.operation = message, operation
        self.agents: tuple[str, ...] = ()
        super().__init__(message)

    @property
    def location(self) -> Location | None:
        return location_of(self.operation) if self.operation is not None else None

    def __str__(self) -> str:
        location = [str(self.location)] if self.location else []
        operation = [f"'{self.operation.name}'"] if self.operation is not None else []
        return ": ".join([*location, *operation, self.message])


class OutOfBounds(SimulationError):
    """An access that is not masked lies outside every buffer the program was given."""


class OffsetOverflow(SimulationError):
    """An offset is another number in the integer type of the program than in mathematics."""


class AssertionFailed(SimulationError):
    """A tile.assert or tile.assume did not hold."""


class BadArgument(SimulationError):
    """An argument that the kernel's signature does not take."""
