"""The state of one trace: where operations go, and where in the user's source we are.

A trace runs the user's function with `Value`s. Each operation is appended to the innermost open
block; opening a region (a loop body, a branch) pushes a block, closing it pops. A value may be used
while the block that defines it is open: that is dominance, checked at every use, so that a value
which escaped its region is an error at the user's line.
"""

from __future__ import annotations

import linecache
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from types import CodeType, FrameType
from typing import NoReturn, TypeVar

from xdsl.dialects.builtin import i32, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tkc.errors import CompileError, Error, Location
from tkc.ir import elementwise, tile
from tkc.ir.ranges import Range, Ranges
from tkc.ir.text import source
from tkc.ir.types import TileType, is_float

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_KERNELS = os.path.join(_OWN, "kernels") + os.sep, os.path.join(_OWN, "fuzz", "kernels.py")
MOST_ELEMENTS = 1 << 31
MOST_OPERATIONS = 1 << 15  # of a trace; a loop that is unrolled without end would have more
_local = threading.local()  # .stack: the traces of this thread, innermost last

RUNTIME = "__tkc__"  # what rewritten functions call
REWRITTEN: weakref.WeakSet[CodeType] = weakref.WeakSet()

Op = TypeVar("Op", bound=Operation)


class Tracer:
    """One trace in progress; `blocks` are the open blocks, innermost last."""

    def __init__(self, block: Block):
        self.blocks = [block]
        self.emitted = 0
        self.semantics = "torch"  # what operators mean: one of promotion.RULES
        self.reasons: dict[str, str] = {}  # why a name has no value, for the error when it is read
        # of what no line of the user's makes: the place of the kernel
        self.place: tuple[str, int, int] | None = None
        self.nonzero: set[int] = set()  # arguments, by number
        self.ranks: tuple[int, int] | None = None  # this one, and how many there are
        self._promises: list[tuple[Block, SSAValue, Range]] = []

    # ----------------------------------------------------------------------------------------------
    def emit(self, op: Op) -> Op:
        op.location = _source(*(self.place or _where()))
        for r in op.results:
            if isinstance(r.type, TileType) and r.type.size >= MOST_ELEMENTS:
                fail(
                    f"a tile has less than 2^31 elements, and this one would have {r.type.size:,}:"
                    " walk over it in a loop, or by more programs"
                )
        self.emitted += 1
        if self.emitted > MOST_OPERATIONS:
            fail(
                f"a kernel is traced to at most {MOST_OPERATIONS:,} operations, and this one has"
                " more: a loop whose condition is known at compile time is unrolled, and this one"
                " is long or has no end; count with tkc.range, or test a traced value"
            )
        self.blocks[-1].add_op(op)
        return op

    def use(self, ssa: SSAValue) -> SSAValue:
        """The value, if the block that defines it is still open."""
        owner = ssa.owner
        block = owner if isinstance(owner, Block) else owner.parent
        if not any(block is b for b in self.blocks):
            fail(
                "a value is used outside the loop or branch where it was computed; assign it to a"
                " variable there, or compute it where it is used"
            )
        return ssa

    def constant(self, value: int | float | bool, t: Attribute) -> SSAValue:
        return self.emit(tile.Constant(value, t)).result

    def promise(self, ssa: SSAValue, known: Range) -> None:
        """An integer has this range wherever the innermost open block is."""
        self._promises.append((self.blocks[-1], ssa, known))

    def place_among_ranks(self, rank: int, world: int, name: str) -> None:
        """An argument says which rank the kernel runs on. Raises CompileError where another one has
        said otherwise.
        """
        if self.ranks not in (None, (rank, world)):
            fail(
                f"the peers `{name}` are of rank {rank} of {world}, others of rank"
                " {} of {}; give a kernel the peers of one group".format(*self.ranks)
            )
        self.ranks = rank, world

    def require_nonzero(self, ssa: SSAValue) -> None:
        """A launch with 0 for this value is an error, where it is an argument and every program
        gets here.
        """
        kernel = self.blocks[0].parent_op()
        if isinstance(ssa.owner, tile.Multiple):
            ssa = ssa.owner.operands[0]
        if len(self.blocks) > 1 or ssa.owner is not self.blocks[0] or kernel is None:
            return
        self.nonzero.add(next(i for i, a in enumerate(self.blocks[0].args) if a is ssa))
        kernel.attributes["nonzero"] = tile.ints(sorted(self.nonzero))

    def range_of(self, ssa: SSAValue) -> Range:
        """The range of an integer, by what is promised here and by what computes it."""
        assumed: dict[SSAValue, Range] = {}
        for block, value, known in self._promises:
            if any(block is b for b in self.blocks):
                assumed[value] = assumed.get(value, known).meet(known)
        return Ranges(assumed).known(ssa)

    @contextmanager
    def inside(self, block: Block) -> Iterator[Block]:
        """Operations go to `block` meanwhile."""
        depth = len(self.blocks)
        self.blocks.append(block)
        try:
            yield block
        finally:
            del self.blocks[depth:]

    @contextmanager
    def at(self, file: str, line: int) -> Iterator[None]:
        """Operations that no line of the user's makes stand at this place meanwhile."""
        before, self.place = self.place, (file, line, 0)
        try:
            yield
        finally:
            self.place = before

    def inline(self, block: Block) -> None:
        """Moves the operations of a closed block to the end of the innermost open one."""
        for op in list(block.ops):
            op.detach()
            self.blocks[-1].add_op(op)


DIVISIONS = ("floordiv", "mod", "div_trunc", "rem_trunc")


def pure(block: Block) -> bool:
    """No operation of a block has an effect or can fault: it may run where it is not needed."""
    risky = tuple(elementwise.CLASSES[n] for n in DIVISIONS)
    return all(
        not op.regions
        and op.has_trait(tile.Pure)
        and not (isinstance(op, risky) and not is_float(op.operands[1].type))
        for op in block.ops
    )


def discard(block: Block) -> None:
    """Forgets a traced block: its uses of outside values are dropped."""
    block.erase(safe_erase=False)


# --------------------------------------------------------------------------------------------------
def _stack() -> list[Tracer]:
    if not hasattr(_local, "stack"):
        _local.stack = []
    return _local.stack


def tracer() -> Tracer:
    if not (stack := _stack()):
        raise Error(
            "tkc operations work inside a kernel only; call the kernel as kernel[grid](...)"
        )
    return stack[-1]


def tracing() -> bool:
    return bool(_stack())


@contextmanager
def activate(t: Tracer) -> Iterator[Tracer]:
    _stack().append(t)
    try:
        yield t
    finally:
        _stack().pop()


# --------------------------------------------------------------------------------------------------
LIBRARIES = {
    *sys.stdlib_module_names,
    "numpy",
    "torch",
    "jax",
    "jaxlib",
    "cupy",
    "xdsl",
    "ml_dtypes",
    "tkc",
    "pytest",
    "_pytest",
    "cuda",
} - {"__main__"}


def is_own(filename: str) -> bool:
    return filename.startswith(_OWN) and not filename.startswith(_KERNELS)


def is_library(module: str | None) -> bool:
    """Code that takes no part in a kernel; our own kernels do, as a user's would."""
    return (module or "").partition(".")[0] in LIBRARIES and not (module or "").startswith(
        ("tkc.kernels", "tkc.fuzz.kernels")
    )


def is_users_frame(frame: FrameType) -> bool:
    """Of a kernel, wherever it is defined, or of code that is no library's."""
    code = frame.f_code
    if is_own(code.co_filename):
        return False
    return is_rewritten(code) or not is_library(frame.f_globals.get("__name__"))


def is_rewritten(code: CodeType) -> bool:
    """Whether code is rewritten, or part of what is, or what was rewritten. Of equal code objects
    the set knows one, and forgets it with that one; what calls the runtime has it as a free
    variable.
    """
    return RUNTIME in code.co_freevars or code in REWRITTEN


def frames(frame: FrameType | None = None) -> list[FrameType]:
    """The user's frames of the running kernel, innermost first."""
    frame, found = frame or sys._getframe(1), []
    while frame is not None and frame.f_code.co_name != "_traced_call":
        if is_users_frame(frame):
            found.append(frame)
        frame = frame.f_back
    return found


Place = tuple[int, int, int | None]
# By the `id` of a code object, for its hash takes a walk over its constants: the object, so that no
# other one gets its id, the positions of its instructions, and the places that were asked for
_KNOWN: dict[int, tuple[CodeType, list, dict[int, Place]]] = {}
MAX_KNOWN = 512


def _known(code: CodeType) -> tuple[CodeType, list, dict[int, Place]]:
    found = _KNOWN.get(id(code))
    if found is None:
        if len(_KNOWN) >= MAX_KNOWN:
            _KNOWN.clear()
        found = _KNOWN[id(code)] = code, list(code.co_positions()), {}
    return found


def _characters(file: str, line: int, column: int | None) -> int | None:
    """A column in characters; Python counts bytes of UTF-8."""
    text = linecache.getline(file, line)
    return (
        column
        if column is None or text.isascii()
        else len(text.encode()[:column].decode(errors="ignore"))
    )


def _place(code: CodeType, last: int, line: int | None) -> Place:
    """Line, column and end column of an instruction."""
    _, positions, places = _known(code)
    if last in places:
        return places[last]
    first, end_line, column, end = (
        positions[last // 2] if 0 <= last // 2 < len(positions) else (line, None, None, None)
    )
    first = first or line or 0
    found = places[last] = (
        first,
        _characters(code.co_filename, first, column) or 0,
        _characters(code.co_filename, first, end) if end_line == first else None,
    )
    return found


def locate(chain: list[tuple[CodeType, int, int | None]]) -> Location | None:
    """The location of a chain of calls, outermost first, each a code object, its last instruction
    and line.
    """
    places: list[tuple[CodeType, Location]] = []
    for code, last, line in chain:
        found = Location(code.co_filename, *_place(code, last, line), code.co_name)
        # an operand of `and`, or a lambda called in place
        if code.co_name == "<lambda>" and places and code in places[-1][0].co_consts:
            found = replace(found, function=places.pop()[1].function)
        places.append((code, found))
    return replace(places[-1][1], calls=tuple(p for _, p in places[:-1])) if places else None


def here() -> Location | None:
    """The user's place now, with the chain of calls inside the kernel."""
    return (
        locate([(f.f_code, f.f_lasti, f.f_lineno) for f in reversed(frames(sys._getframe(1)))])
        if tracing()
        else None
    )


def _where() -> tuple[str, int, int]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if is_users_frame(frame):
            found = _known(code)[2].get(frame.f_lasti)
            line, column, _ = found or _place(code, frame.f_lasti, frame.f_lineno)
            return code.co_filename, line, column
        if code.co_name == "_traced_call":
            break
        frame = frame.f_back
    return "", 0, 0


@lru_cache(maxsize=4096)
def _source(file: str, line: int, column: int):
    return source(Location(file, line, column))


def fail(message: str) -> NoReturn:
    """Raises a CompileError at the user's line."""
    raise CompileError(message, here())


def integer_type(value: int) -> Attribute:
    return i32 if -(2**31) <= value < 2**31 else i64
