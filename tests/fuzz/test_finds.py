"""The random kernels find faults that users found first: each fix is taken out, and some kernel of
a bounded number then gives something else than it says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from random import Random

import pytest
from xdsl.dialects import scf

from tkc.codegen.ptx import register_coalescing
from tkc.codegen.ptx.emitter import Emitter
from tkc.fuzz.check import Failure, Variant, check, default_target, variants
from tkc.fuzz.dot_productions import HELD, OF_A_TILE, READ_ALIKE
from tkc.fuzz.productions import HASHED_SHARE, RECORDS_SHARE, kernel
from tkc.ir import ranges
from tkc.ir.values import array_type
from tkc.language import control
from tkc.passes import (
    fit_dots,
    fit_rows,
    insert_synchronization,
    merge_loads,
    pipeline_async_copies,
    raise_pointers,
)
from tkc.passes.analysis import alias, pointers
from tkc.passes.planning import order, streaming
from tkc.passes.planning.roles import loads, multicast, programs, request, sharing
from tkc.passes.programs import order as program_order
from tkc.passes.programs import split_k
from tkc.passes.raised import arrays, writing
from tkc.passes.schedule import expand
from tkc.passes.warpgroups import (
    carried_dots,
    consuming,
    epilogue_stores,
    in_flight,
    numbers_of_tiles,
    producing,
    stored,
    tails,
)
from tkc.sim import wrapping

MOST_KERNELS = 60  # that are run for a fault
STATEMENTS = 5  # of each


def found(policy: str | None, seeds: Iterable[int], ptx: bool = False) -> Failure | None:
    """The first failure of a random kernel, compiled for its own target and run at the end of the
    passes alone. policy: None, where the seed chooses it. ptx: read and run its PTX, too.
    """
    for seed in seeds:
        k = kernel(seed, policy, STATEMENTS if policy not in (None, "roles") else None)
        target = default_target(k)
        chosen = [replace(v, each=False, ptx=ptx) for v in variants(k, target, False, None)]
        failures = [f for f in check(k, chosen=chosen) if f.kind != "refused"]
        if failures:
            return failures[0]
    return None


# where a check stands that keeps an order, what it says where it is taken out, and the policy
CHECKS = {
    "loads ahead of stores": (expand, "_may_conflict", False, "in_place"),
    "tensor maps of what a program wrote": (order, "written_before", False, "roles"),
    "barriers between arguments": (insert_synchronization, "_stand_ins", {}, "in_place"),
    "loads moved into a loop over parts": (fit_dots, "unseen", True, "large"),
}


@pytest.mark.parametrize("name", CHECKS)
def test_an_order_of_memory_that_is_not_kept(name, monkeypatch):
    module, check_, answer, policy = CHECKS[name]
    monkeypatch.setattr(module, check_, lambda *given, **options: answer)
    failure = found(policy, range(MOST_KERNELS))
    assert failure is not None and failure.kind in ("wrong", "Violation")


def test_hashes_that_are_taken_for_offsets(monkeypatch):
    """Level 0 asks the same question, and refuses them; where it does not, code is wrong."""
    monkeypatch.setattr(ranges, "makes_offsets", lambda value: True)
    seeds = [n for n in range(2000) if Random(f"wrapped numbers {n}").random() < HASHED_SHARE]
    failure = found("mixed", seeds[:MOST_KERNELS])
    assert failure is not None and failure.kind == "OffsetOverflow"
    monkeypatch.setattr(wrapping, "refuse_index", lambda *given: None)
    failure = found("mixed", seeds[:MOST_KERNELS])
    assert failure is not None and failure.kind == "wrong"


def test_masks_by_hashes_that_are_taken_for_bounds(monkeypatch):
    monkeypatch.setattr(pointers.Forms, "is_exact", lambda *given: True)
    seeds = (n for n in range(2000) if Random(f"wrapped masks {n}").random() < HASHED_SHARE)
    failure = found("mixed", islice(seeds, MOST_KERNELS))
    assert failure is not None and failure.kind == "wrong"


def _only_unknown(copy, loop, overlaps):
    """As it was: an array that is made of an address was taken for one in no argument."""
    if alias.accessed(copy) is None:
        return not alias._writes_any(loop.walk(), ())
    return alias.unchanged(copy, loop, overlaps)


@pytest.mark.parametrize(
    "unchanged, seeds", [(lambda *given: True, range(MOST_KERNELS)), (_only_unknown, [3])]
)
def test_copies_ahead_of_stores_are_refused(unchanged, seeds, monkeypatch):
    """By the writer of pipelines, where the pass that asks for them does not look."""
    monkeypatch.setattr(pipeline_async_copies, "source_unchanged", unchanged)
    failure = found("in_place", seeds)
    assert failure is not None and failure.kind == "VerifyError" and "may meet" in failure.message


# the same, found by campaigns: the policy, None where seeds choose it, and the seed
FOUND_LATER = {
    "rows that blocks of a cluster share": (streaming, "_keeps_parts_apart", True, "large", 456),
    "rows that another warpgroup reads": (epilogue_stores, "_of_others", False, "roles", 446),
    "numbers that producers look up": (request, "keep_in_order", False, "roles", 211),
    "arrays that programs at once write": (sharing, "_apart_by_loop", "", "roles", 884),
    "a program behind the last one": (programs, "unwritten", True, "roles", 20778),
    "sums that are read while they grow": (in_flight, "sources", set(), None, 3002524),
    "rows that move by less than a row": (streaming, "_moves_by_less", False, None, 2007),
    "rows that a loop reads again": (streaming, "_loops_round", (), None, 2007),
    "rings that blocks fill unequally often": (multicast, "ways_to", (), None, 350000993),
}


@pytest.mark.parametrize("name", FOUND_LATER)
def test_an_order_of_memory_that_campaigns_found(name, monkeypatch):
    module, check_, answer, policy, seed = FOUND_LATER[name]
    assert found(policy, [seed]) is None
    monkeypatch.setattr(module, check_, lambda *given, **options: answer)
    failure = found(policy, [seed])
    assert failure is not None and failure.kind in ("Violation", "VerifyError")


def test_parts_that_all_begin_with_what_a_sum_begins_with(monkeypatch):
    """Of a sum that programs share, each began with a bias."""
    split = Variant("sm_90a", None, 5, split=2, each=False, ptx=False)
    assert not check(kernel(11, "roles"), chosen=[split])
    monkeypatch.setattr(split_k, "begin_once", lambda *given: None)
    assert [f.kind for f in check(kernel(11, "roles"), chosen=[split])] == ["wrong"]


STORED_AGAIN = {
    "rows that are read again behind stores": (fit_rows, "loops_of", [], None, 1088),
    "copies of two iterations": (epilogue_stores, "_own_loops", [], "roles", 147),
    "what a branch of an earlier iteration stored": (
        epilogue_stores,
        "_own_loops",
        [],
        "roles",
        1005,
    ),
    "copies of a program that takes its work": (
        epilogue_stores,
        "_own_loops",
        [],
        None,
        400003900,
    ),
    "copies behind stores of threads": (epilogue_stores, "_is_behind_stores", False, "roles", 147),
}


@pytest.mark.parametrize("name", STORED_AGAIN)
def test_loops_that_store_where_they_have_stored(name, monkeypatch):
    module, check_, answer, policy, seed = STORED_AGAIN[name]
    assert found(policy, [seed]) is None
    monkeypatch.setattr(module, check_, lambda *given: answer)
    failure = found(policy, [seed])
    assert failure is not None and failure.kind in ("Violation", "wrong")


def test_a_block_that_a_later_iteration_stores(monkeypatch):
    """What it leaves out was compared with what the later one does."""
    assert found(None, [48]) is None
    monkeypatch.setattr(raise_pointers, "_changes_around", lambda *given: False)
    failure = found(None, [48])
    assert failure is not None and failure.kind == "wrong"


def test_copies_by_threads_behind_a_loop_wait_for_their_own_stage():
    """A copy behind a loop whose copies arrive late took the number of its stage for the parity of
    its ring, and hung.
    """
    assert found("roles", [324]) is None


def test_buffers_of_results_that_leave_in_two_ways():
    """A copy was counted for what threads store, and a buffer was written while a copy read it."""
    assert found("roles", [96]) is None


def test_arrays_of_pointers_that_are_made_behind_a_write():
    """A tensor map was made of an array before the array was."""
    assert found(None, [21001099]) is None


def test_stages_that_two_dots_of_a_sum_read():
    """They were released twice."""
    assert found("roles", [675]) is None


def test_results_of_dots_that_ptxas_takes_for_each_other(monkeypatch):
    """Dots took turns in registers that equal operations read, and ptxas dropped one of them."""
    monkeypatch.setattr(register_coalescing, "read_alike", lambda left, right: False)
    failure = found("roles", range(READ_ALIKE - 1, MOST_KERNELS, READ_ALIKE), ptx=True)
    assert failure is not None and "ptxas would take" in failure.message


def test_places_that_warps_compute_together(monkeypatch):
    """A producer of one warp took its part of a tile for the whole."""
    seeds = range(OF_A_TILE - 2, 80, OF_A_TILE)
    assert found("roles", seeds) is None
    monkeypatch.setattr(loads, "take_several_warps", lambda places: False)
    failure = found("roles", seeds)
    assert failure is not None and failure.kind == "Violation"


@pytest.mark.parametrize(
    "seed, known",
    [
        (21, lambda array, overlaps: False),
        (31, lambda array, overlaps: array_type(array).facts.overlaps_itself),
    ],
)
def test_windows_that_slide(seed, known, monkeypatch):
    """Other elements of an array were taken for other memory: of one that the kernel makes, and of
    an argument of which the launch alone tells.
    """
    assert found("in_place", [seed]) is None
    monkeypatch.setattr(insert_synchronization, "is_folded", known)
    failure = found("in_place", [seed])
    assert failure is not None and failure.kind == "Violation"


def test_tiles_that_a_role_holds(monkeypatch):
    """A producer read what warps of the consumers hand one another."""
    assert found("roles", [58]) is None
    monkeypatch.setattr(numbers_of_tiles, "_handed_on", lambda value: value)
    failure = found("roles", [58])
    assert failure is not None and failure.kind == "Violation"


def test_programs_that_wait_for_shorter_ones(monkeypatch):
    """The longest ran first, and waited for ever where there were fewer blocks."""
    assert found("roles", [433]) is None
    monkeypatch.setattr(program_order, "_keeps_launch_order", lambda kernel: False)
    failure = found("roles", [433])
    assert failure is not None and "waits for what no program" in failure.message


def test_branches_that_ask_what_consumers_hand_on(monkeypatch):
    """What they ask was read before it was written."""
    assert found("roles", [122]) is None
    monkeypatch.setattr(tails, "_is_known", lambda condition, begun: True)
    failure = found("roles", [122])
    assert failure is not None and failure.kind == "Violation"


def test_loops_that_ask_what_consumers_hand_on(monkeypatch):
    """A producer ran them, too, and read what nobody had written."""
    assert found("roles", [52]) is None
    computes = producing._computes
    monkeypatch.setattr(
        producing, "_computes", lambda op: not isinstance(op, scf.WhileOp) and computes(op)
    )
    failure = found("roles", [52])
    assert failure is not None and failure.kind == "Violation"


def test_places_that_take_more_than_32_bits(monkeypatch):
    assert found(None, [117]) is None
    for module in (arrays, raise_pointers, writing):
        monkeypatch.setattr(module, "is_large", lambda base: False)
    failure = found(None, [117])
    assert failure is not None and failure.kind == "OffsetOverflow"


def test_registers_that_dots_in_flight_read(monkeypatch):
    """A left operand in registers was read, or computed anew, while its dot was in flight."""
    seeds = range(HELD - 3, MOST_KERNELS, HELD)
    assert found("roles", seeds, ptx=True) is None
    monkeypatch.setattr(in_flight, "sources", lambda value: set())
    failure = found("roles", seeds, ptx=True)
    assert failure is not None and failure.kind == "Fault"


def test_steps_below_zero(monkeypatch):
    """Ranges were taken to count up where the sign of the step was not known."""
    monkeypatch.setattr(control, "counts_up", lambda step: True)
    kernels = (kernel(seed, "control", STATEMENTS) for seed in range(MOST_KERNELS))
    failure = next(f for k in kernels for f in check(k, chosen=()))
    assert failure.stage == "level 0"
    assert "Python" in failure.message or "step" in failure.message


def test_elements_of_registers_that_were_written_again(monkeypatch):
    """A packed tile was taken apart into registers in which a product had been written meanwhile
    (a mask of `dot % 4` beside `dot % 4 * other`, of 8 bits).
    """
    assert found(None, [23001379], ptx=True) is None

    def remember(e, raw, values, element):
        e.widened[raw, element] = list(values)

    monkeypatch.setattr(Emitter, "remember", remember)
    failure = found(None, [23001379], ptx=True)
    assert failure is not None and failure.kind == "wrong"


def test_parts_of_records_under_other_masks_that_are_read_together(monkeypatch):
    of = merge_loads.Place.of

    def unmasked(op, form):
        place = of(op, form)
        return place and (replace(place[0], mask=None, other=None), place[1])

    monkeypatch.setattr(merge_loads.Place, "of", unmasked)
    seeds = (s for s in range(10**6) if Random(f"records {s}").random() < RECORDS_SHARE)
    alone = (s for s in seeds if "tkc.dot(" not in kernel(s).source)
    failure = found(None, islice(alone, MOST_KERNELS))
    assert failure is not None and failure.kind in ("wrong", "Violation")


def test_quotients_of_sums_that_wrap(monkeypatch):
    """They were divided apart beside blocks by pointers."""

    class NeverWrapping(ranges.Ranges):
        def overflow(self, op):
            return ranges.Overflow.NEVER

    assert found(None, [10944]) is None
    monkeypatch.setattr(raise_pointers, "Ranges", NeverWrapping)
    failure = found(None, [10944])
    assert failure is not None and failure.kind == "wrong"


def test_promises_of_iterations_that_do_not_exist(monkeypatch):
    """What ran ahead of a loop promised what the loop would have, had it run."""
    assert found(None, [713]) is None
    monkeypatch.setattr(expand._Iteration, "_may_be_none", lambda *given: False)
    failure = found(None, [713])
    assert failure is not None and failure.kind == "AssertionFailed"


def test_numbers_that_say_how_often_roles_copy(monkeypatch):
    """Each role read them for itself, and the program then overwrote them."""
    assert found("roles", [1024]) is None
    monkeypatch.setattr(stored, "_overwrites_numbers", lambda *given: False)
    failure = found("roles", [1024])
    assert failure is not None and failure.kind == "Violation"


def test_dots_that_run_on_in_rings_of_one_stage(monkeypatch):
    """They released it behind the wait for what comes into it next."""
    assert found(None, [306]) is None

    def may_run_on(stages, block):
        return all(where is block for *_, where in stages)

    for module in (carried_dots, consuming):
        monkeypatch.setattr(module, "may_run_on", may_run_on)
    failure = found(None, [306])
    assert failure is not None and "deadlock" in failure.message


def test_last_readers_in_loops_that_are_written_anew(monkeypatch):
    """They were known by the numbers of stages, and the loop then had others."""
    assert found(None, [1389]) is None

    class Numbered(consuming.Overlap):
        def _note_readers(self):
            super()._note_readers()
            self.numbers = [(self.rings[s.ring].full, s.index[0], dot) for s, dot in self.readers]

        def _last_reader(self, ring, number):
            read = (
                dot for full, n, dot in reversed(self.numbers) if (full, n) == (ring.full, number)
            )
            return next(read, None)

    monkeypatch.setattr(consuming, "Overlap", Numbered)
    failure = found(None, [1389])
    assert failure is not None and "deadlock" in failure.message
