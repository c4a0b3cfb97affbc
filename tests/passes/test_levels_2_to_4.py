"""swizzle-shared … assign-registers on hand-written level-1 kernels: structure after every pass,
text that round-trips.
"""

from types import SimpleNamespace

import pytest
from xdsl.dialects import scf

import tkc
from tests.passes.stages import count
from tkc.errors import CompileError, VerifyError
from tkc.ir import shared, threads, tile
from tkc.ir.plan import Plan
from tkc.ir.target import target
from tkc.ir.text import parse, show
from tkc.ir.verify import verify
from tkc.passes import PassContext
from tkc.passes.pipeline import PIPELINE, module_of

AFTER_LAYOUTS = PIPELINE[PIPELINE.index("swizzle-shared") :]
ARRAY = '!tile.array<?x?xbf16, "shape 16 16 strides 8 =1 align 16">'


def tiled(shape: str, layout: str) -> str:
    return f'!tile.tile<{shape}, "{layout}">'


def product(bm=128, bn=128, bk=32, warps="4x2", count=8) -> str:
    """A product's level-1 text: both operands loaded coalesced and converted for mma.sync, the
    result stored coalesced.
    """
    la, lb = (
        tiled(f"{bm}x{bk}xbf16", f"blocked {bm}x{bk} vector 8 warps {count}"),
        tiled(f"{bk}x{bn}xbf16", f"blocked {bk}x{bn} vector 8 warps {count}"),
    )
    ma, mb = (
        tiled(f"{bm}x{bk}xbf16", f"mma_a {bm}x{bk} warps {warps}"),
        tiled(f"{bk}x{bn}xbf16", f"mma_b {bk}x{bn} warps {warps}"),
    )
    c, h, out = (
        tiled(f"{bm}x{bn}x{e}", f"{kind} {bm}x{bn} {w}")
        for e, kind, w in (
            ("f32", "mma", f"warps {warps}"),
            ("bf16", "mma", f"warps {warps}"),
            ("bf16", "blocked", f"vector 8 warps {count}"),
        )
    )
    return f"""
tile.kernel @product(%a: {ARRAY}, %b: {ARRAY}, %c: {ARRAY})
    {{warps = {count} : i64, level = 1 : i64}} {{
  %p0 = tile.program_id 0 : i32
  %p1 = tile.program_id 1 : i32
  %bm = tile.constant {bm} : i32
  %bn = tile.constant {bn} : i32
  %bk = tile.constant {bk} : i32
  %m = tile.mul %p0, %bm : i32
  %n = tile.mul %p1, %bn : i32
  %z = tile.constant 0 : i32
  %K = tile.dim %a, 1 : ({ARRAY}) -> i32
  %acc = tile.constant 0.0 : {c}
  %r = scf.for %k = %z to %K step %bk iter_args(%d = %acc) -> ({c}) : i32 {{
    %x = tile.load %a[%m, %k] {{extents = array<i64: {bm}, {bk}>}} : ({ARRAY}, i32, i32) -> {la}
    %y = tile.load %b[%k, %n] {{extents = array<i64: {bk}, {bn}>}} : ({ARRAY}, i32, i32) -> {lb}
    %xa = tile.convert %x : ({la}) -> {ma}
    %yb = tile.convert %y : ({lb}) -> {mb}
    %e = tile.dot %xa, %yb, %d {{precision = "ieee", instruction = "mma"}}
      : ({ma}, {mb}, {c}) -> {c}
    scf.yield %e : {c}
  }}
  %h = tile.cast %r : {c} to {h}
  %hb = tile.convert %h : ({h}) -> {out}
  tile.store %c[%m, %n] %hb {{extents = array<i64: {bm}, {bn}>}} : ({ARRAY}, i32, i32, {out})
  tile.return
}}"""


def lower(text: str, stages: int = 3, machine: str = "sm_80", stop: str | None = None):
    """The module after each pass up to `stop`, each verified and round-tripped; and the context."""
    module = parse(text)
    verify(module)
    context = PassContext(
        target(machine), SimpleNamespace(num_stages=stages), plan=Plan(stages=stages)
    )
    for name in AFTER_LAYOUTS:
        module_of(name).run(module, context)
        verify(module, name)
        assert show(parse(show(module))) == show(module)
        if name == stop:
            break
    return module, context


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_ring_costs_one_barrier_an_iteration(stages):
    module, _ = lower(product(), stages)
    loop = next(op for op in module.walk() if isinstance(op, scf.ForOp))
    assert count(loop, threads.BlockBarrier) == 1
    assert count(loop, threads.CpAsync) == 2 and count(loop, threads.CpCommit) == 1
    assert [op.pending.value.data for op in module.walk() if isinstance(op, threads.CpWait)] == [
        stages - 2,
        0,
    ]
    assert [op.result.type.stages for op in module.walk() if isinstance(op, shared.Alloc)] == [
        stages,
        stages,
        1,
    ]
    assert count(module, threads.CpAsync) == 2 * stages


def test_one_stage_waits_for_each_copy():
    module, _ = lower(product(), 1)
    loop = next(op for op in module.walk() if isinstance(op, scf.ForOp))
    assert (
        count(loop, threads.CpWait) == count(loop, threads.CpAsync) == 2
        and count(loop, threads.BlockBarrier) == 2
    )


def test_operands_are_read_without_bank_conflicts():
    module, _ = lower(product(), stop="swizzle-shared")
    assert [
        op.conflicts.value.data
        for op in module.walk()
        if isinstance(op, (shared.Read, shared.Write))
    ] == [1, 1, 1, 1]
    assert {str(op.result.type.memory) for op in module.walk() if isinstance(op, shared.Alloc)} == {
        "128x32xb16 swizzle 64",
        "32x128xb16 swizzle 128",
        "128x128xb16 swizzle 128",
    }
    assert count(module, shared.Copy) == 2 and count(module, tile.Load) == 0


def test_the_epilogue_reuses_the_rings_bytes():
    module, _ = lower(product())
    kernel = module.body.block.first_op
    assert kernel.integer("shared_bytes") == 3 * (128 * 32 + 32 * 128) * 2 and kernel.level == 4


def test_too_much_shared_memory_names_the_sizes():
    with pytest.raises(
        CompileError, match="131072 bytes, of which sm_89 has 101376; use smaller tiles"
    ):
        lower(product(256, 256, 64, "4x2"), 1, "sm_89")


def test_fewer_stages_where_shared_memory_is_short():
    module, context = lower(product(128, 128, 64), 8, "sm_89", stop="pipeline-async-copies")
    assert any("stages instead of 8" in line for line in context.decisions)


REDUCTION = """
tile.kernel @rows(%x: !tile.array<?x?xf32, "shape 1 4 strides 4 =1 align 16">,
    %y: !tile.array<?xf32>) {warps = 4 : i64, level = 1 : i64} {
  %p = tile.program_id 0 : i32
  %z = tile.constant 0 : i32
  %v = tile.load %x[%p, %z] {extents = array<i64: -1, 1024>}
    : (!tile.array<?x?xf32, "shape 1 4 strides 4 =1 align 16">, i32, i32)
    -> !tile.tile<1024xf32, "blocked 1024 vector 4 warps 4">
  %s = tile.reduce KIND[%v] {axis = 0 : i64}
    : (!tile.tile<1024xf32, "blocked 1024 vector 4 warps 4">) -> RESULT
  STORE
  tile.return
}"""
STORE = "tile.store %y[%p] %s {extents = array<i64: -1>} : (!tile.array<?xf32>, i32, f32)"


@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
def test_a_reduction_over_warps_goes_through_shared_memory(kind):
    module, _ = lower(
        REDUCTION.replace("KIND", kind).replace("RESULT", "f32").replace("STORE", STORE)
    )
    names = [op.name for op in module.body.block.first_op.body.block.ops]
    at = names.index("tile.reduce_partial")
    assert [n for n in names[at:] if n not in ("tile.constant", "tile.alloc")] == [
        "tile.reduce_partial",
        "tile.write",
        "tile.block_barrier",
        "tile.read",
        "tile.reduce",
        "tile.store",
        "tile.return",
    ]
    read = next(op for op in module.walk() if isinstance(op, shared.Read))
    assert read.result.type.extents == (4,) and read.result.type.register_layout.num_registers == 4


def test_argmax_over_warps_gathers_the_axis():
    text = (
        REDUCTION.replace("KIND", "argmax")
        .replace("RESULT", "i32")
        .replace("STORE", STORE.replace("xf32", "xi32").replace("f32)", "i32)"))
        .replace("%y: !tile.array<?xf32>", "%y: !tile.array<?xi32>")
    )
    module, _ = lower(text)
    reduce = next(op for op in module.walk() if isinstance(op, tile.Reduce))
    assert reduce.args[0].type.register_layout.warps_along(0) == 1


def test_extract_broadcasts_one_element():
    text = """
tile.kernel @pick(%x: !tile.array<?xf32>, %y: !tile.array<?xf32>)
    {warps = 4 : i64, level = 1 : i64} {
  %z = tile.constant 0 : i32
  %v = tile.load %x[%z] {extents = array<i64: 512>}
    : (!tile.array<?xf32>, i32) -> !tile.tile<512xf32, "blocked 512 vector 4 warps 4">
  %s = tile.extract %v {index = array<i64: 511>}
    : (!tile.tile<512xf32, "blocked 512 vector 4 warps 4">) -> f32
  tile.store %y[%z] %s {extents = array<i64: -1>} : (!tile.array<?xf32>, i32, f32)
  tile.return
}"""
    module, _ = lower(text)
    extract = next(op for op in module.walk() if isinstance(op, tile.Extract))
    assert extract.arg.type.extents == (1,) and extract.arg.type.register_layout.num_registers == 1


def test_in_place_update_needs_no_barrier_but_a_neighbour_does():
    def kernel(offset):
        t = '!tile.tile<512xf32, "blocked 512 vector 4 warps 4">'
        return f"""
tile.kernel @shift(%x: !tile.array<?xf32>) {{warps = 4 : i64, level = 1 : i64}} {{
  %z = tile.constant 0 : i32
  %o = tile.constant {offset} : i32
  %v = tile.load %x[%z] {{extents = array<i64: 512>}} : (!tile.array<?xf32>, i32) -> {t}
  tile.store %x[{"%z" if offset == 0 else "%o"}] %v {{extents = array<i64: 512>}}
    : (!tile.array<?xf32>, i32, {t})
  tile.return
}}"""

    assert count(lower(kernel(0))[0], threads.BlockBarrier) == 0
    assert count(lower(kernel(1))[0], threads.BlockBarrier) == 1


@pytest.mark.parametrize(
    "extents, layout, barriers",
    [
        ("256", "blocked 256 vector 2 warps 4", 0),
        ("64", "blocked 64 vector 1 warps 4", 1),
        ("1", "blocked 1 vector 1 warps 4", 1),
        ("-1", "", 1),
    ],
)
def test_what_several_threads_hold_is_loaded_behind_a_barrier(extents, layout, barriers):
    """One of them stores it (a tile of fewer elements than threads, a scalar) and all load it."""
    t = f'!tile.tile<{extents}xf32, "{layout}">' if layout else "f32"
    zero = "%0 = tile.constant 0.0 : " + t
    text = f"""
tile.kernel @back(%x: !tile.array<?xf32>, %y: !tile.array<?xf32>)
    {{warps = 4 : i64, level = 1 : i64}} {{
  %z = tile.constant 0 : i32
  {zero}
  tile.store %x[%z] %0 {{extents = array<i64: {extents}>}} : (!tile.array<?xf32>, i32, {t})
  %v = tile.load %x[%z] {{extents = array<i64: {extents}>}} : (!tile.array<?xf32>, i32) -> {t}
  tile.store %y[%z] %v {{extents = array<i64: {extents}>}} : (!tile.array<?xf32>, i32, {t})
  tile.return
}}"""
    assert count(lower(text)[0], threads.BlockBarrier) == barriers


@pytest.mark.parametrize("step, barriers", [(1, 0), (0, 1)])
def test_pointers_that_may_repeat_lead_to_what_others_stored(step, barriers):
    def kernel(x, STEP: tkc.constexpr):
        places = x.ptr + (tkc.arange(512) if STEP else tkc.arange(512) // 2)
        tkc.store(places, tkc.load(places) * 2)

    compiled = tkc.jit(kernel).compile("f32[512]", STEP=step, num_warps=4, target="sm_80")
    assert compiled.ir("final").count("tile.block_barrier") == barriers


def test_reading_bytes_in_flight_is_refused():
    text = show(lower(product(), 3, stop="allocate-shared")[0]).replace(
        "tile.cp_wait 1", "tile.cp_wait 2"
    )
    module = parse(text)
    with pytest.raises(VerifyError, match="copy in flight"):
        module_of("insert-synchronization").run(module, PassContext(target("sm_80")))
