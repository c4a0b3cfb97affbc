"""Changes of what orders the memory of several GPUs: of each signal, each wait, their scopes, and
what must come before or behind them. Part of the table of `tkc.sim.mutants`.

They apply to accesses of scope "system" alone, but for two: what a program writes of its order
(`announced`) may be left out, or done before other threads have met, in any scope.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.dialects import scf
from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import Operation

from tkc.ir import threads, tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.values import block_of, holds

Change = Callable[[Any], None]
Watching = tile.LoadPointers, tile.StorePointers, tile.Atomic
GLOBAL = tile.Load, tile.LoadPointers, tile.Store, tile.StorePointers, threads.TmaLoad
# what a signal announces, or waits for before it
BEFORE = (*GLOBAL, threads.TmaStore, threads.BulkWait)
ORDERS = "lt", "gt"


def semantics_of(op: Operation) -> str:
    """Of an access of scope "system"; "" of any other operation."""
    if not isinstance(op, Watching) or op.scope is None or op.scope.data != "system":
        return ""
    return "acq_rel" if op.semantics is None else op.semantics.data


def announced(op: Operation) -> str:
    """The semantics that an access of any scope says that it has; "" where it says nothing."""
    if not isinstance(op, Watching) or op.semantics is None:
        return semantics_of(op)
    return op.semantics.data


def signals(op: Operation) -> bool:
    """Whether it releases to other GPUs."""
    return semantics_of(op) in ("release", "acq_rel")


def waits(op: Operation) -> bool:
    """Whether it is a loop that acquires from other GPUs."""
    return isinstance(op, scf.WhileOp) and any(
        semantics_of(inner) in ("acquire", "acq_rel") for inner in op.walk()
    )


def narrower(op: Operation) -> None:
    op.properties["scope"] = StringAttr("gpu")


def relaxed(op: Operation) -> None:
    op.properties["semantics"] = StringAttr("relaxed")


def alone(op: Operation) -> None:
    """One thread releases before the others have met it."""
    op.attributes["alone"] = UnitAttr()


def source_read(op: threads.BulkWait) -> None:
    """Waits until the stores have read shared memory, not until they have written."""
    op.properties["read"] = UnitAttr()


def _near(op: Operation, kinds: tuple[type[Operation], ...], back: bool) -> Operation | None:
    """The nearest operation of these classes in its block, or that holds one."""
    found = op.prev_op if back else op.next_op
    while found is not None and not holds(found, kinds):
        found = found.prev_op if back else found.next_op
    return found


def signal_earlier(op: Operation) -> None:
    before = _near(op, BEFORE, back=True)
    assert before is not None, "there is one where this change applies"
    op.detach()
    block_of(before).insert_op_before(op, before)


def _is_free(op: Operation, before: Operation | None) -> bool:
    """Whether what an operation uses is there before another one."""
    if before is None:
        return False
    return all(
        not isinstance(v.owner, Operation)
        or v.owner.parent is not op.parent
        or v.owner.is_before_in_block(before)
        for v in op.operands
    )


def wait_later(op: scf.WhileOp) -> None:
    after = _near(op, GLOBAL, back=False)
    assert after is not None, "there is one where this change applies"
    op.detach()
    block_of(after).insert_op_after(op, after)


def no_wait(op: scf.WhileOp) -> None:
    op.detach()
    op.erase()


def _is_unused(op: Operation) -> bool:
    return all(r.first_use is None for r in op.results)


def _test(op: Operation) -> Operation | None:
    """The comparison of a loop that waits."""
    if not isinstance(op, scf.WhileOp):
        return None
    end = op.before_region.block.last_op
    owner = end.operands[0].owner if end is not None else None
    kinds = tuple(CLASSES[name] for name in ORDERS)
    return owner if isinstance(owner, kinds) else None


def until_equal(op: scf.WhileOp) -> None:
    """Waits until the flag is that number, not until it is at least that."""
    test = _test(op)
    assert test is not None
    other = CLASSES["ne"](*test.operands)
    block_of(test).insert_op_before(other, test)
    test.results[0].replace_all_uses_with(other.results[0])
    test.detach()
    test.erase()


def no_signal(op: Operation) -> None:
    op.detach()
    op.erase()


OPERATORS: dict[str, tuple[Change, Callable[[Operation], bool]]] = {
    "scope": (narrower, lambda op: bool(semantics_of(op))),
    "relaxed": (relaxed, lambda op: announced(op) not in ("", "relaxed")),
    "alone": (alone, lambda op: announced(op) in ("release", "acq_rel")),
    "source read": (
        source_read,
        lambda op: (
            isinstance(op, threads.BulkWait)
            and op.read is None
            and any(map(signals, _following(op)))
        ),
    ),
    "signal earlier": (
        signal_earlier,
        lambda op: signals(op) and _is_unused(op) and _is_free(op, _near(op, BEFORE, back=True)),
    ),
    "no signal": (no_signal, lambda op: signals(op) and _is_unused(op)),
    "wait later": (
        wait_later,
        lambda op: waits(op) and _is_unused(op) and _near(op, GLOBAL, back=False) is not None,
    ),
    "no wait": (no_wait, lambda op: waits(op) and _is_unused(op)),
    "until equal": (until_equal, lambda op: waits(op) and _test(op) is not None),
}


def _following(op: Operation) -> list[Operation]:
    """The operations of its block behind it."""
    found: list[Operation] = []
    while op.next_op is not None:
        op = op.next_op
        found.append(op)
    return found
