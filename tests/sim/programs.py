"""Small level-4 programs as text: a TMA ring with two roles and a cp.async ring with one. Mutants
are changes of the text.
"""

from tkc.ir.fragments import wgmma_a, wgmma_accumulator
from tkc.ir.layout import blocked
from tkc.ir.shared_layout import SharedLayout

A, B = '64x64xbf16, "64x64xb16 swizzle 128"', '64x32xbf16, "64x32xb16 swizzle 64"'
C = '64x32xbf16, "64x32xb16 swizzle 64"'
ACC = f'!tile.tile<64x32xf32, "{wgmma_accumulator(64, 32)}">'
OUT = f'!tile.tile<64x32xbf16, "{wgmma_accumulator(64, 32)}">'


def product(stages=2, tiles=1, cluster=1) -> str:
    """C[64 t, 32] = A·B, K in steps of 64: a producer of one thread, a consumer of four warps, a
    store by TMA.

    `tiles` of C a block, one after the other. cluster 2: two blocks share B, each loads half of it
    for both.
    """
    half = SharedLayout.parse("64x32xb16 swizzle 64").slice((0, 0), (32, 32))[0]
    load = """tile.tma_load %mb[%column, %zero] %br, %full[%s] \
              : (!tile.map<64x32xbf16, 64>, i32, i32, !tile.shared<1, B>, \
              !tile.barriers<STAGES>, i32)"""
    release, ready, end = (
        "tile.mbarrier_arrive %empty[%s] : (!tile.barriers<STAGES>, i32)",
        "tile.block_barrier",
        "",
    )
    if cluster == 2:
        load = """%part = tile.shared_slice %br[%mine, %zero] \
              : (!tile.shared<1, B>, i32, i32) -> !tile.shared<1, HALF>
          %krow = tile.add %column, %mine : i32
          tile.tma_load %mb[%krow, %zero] %part, %full[%s] to %everyone \
              : (!tile.map<32x32xbf16, 64>, i32, i32, !tile.shared<1, HALF>, \
              !tile.barriers<STAGES>, i32, i32)"""
        release = (
            "tile.mbarrier_arrive %empty[%s] to %everyone : (!tile.barriers<STAGES>, i32, i32)"
        )
        ready = "tile.cluster_arrive {relaxed}\n  tile.cluster_wait"
        end = "tile.cluster_arrive\n  tile.cluster_wait"
    text = _product(stages, tiles, cluster)
    if cluster == 2:
        text = text.replace("!tile.map<64x32xbf16, 64>\n  %mc", "!tile.map<32x32xbf16, 64>\n  %mc")
    for name, value in (
        ("LOAD_B", load),
        ("RELEASE", release),
        ("READY", ready),
        ("END", end),
        ("HALF", f'32x32xbf16, "{half}"'),
        ("<1, B>", f"<1, {B}>"),
        ("STAGES", str(stages)),
    ):
        text = text.replace(name, value)
    return text


def _product(stages, tiles, cluster) -> str:
    return f"""
tile.kernel @product(%a: !tile.array<?x?xbf16>, %b: !tile.array<?x?xbf16>, \
    %c: !tile.array<?x?xbf16>, %steps: i32) \
    {{level = 4 : i64, cluster = [{cluster} : i64, 1 : i64]}} {{
  %rank = tile.identity cluster_rank : i32
  %block = tile.identity block : i32
  %thirtytwo = tile.constant 32 : i32
  %mine = tile.mul %rank, %thirtytwo : i32
  %everyone = tile.constant {2**cluster - 1} : i32
  %zero = tile.constant 0 : i32
  %one = tile.constant 1 : i32
  %tiles = tile.constant {tiles} : i32
  %height = tile.constant 64 : i32
  %bk = tile.constant 64 : i32
  %ma = tile.tensor_map %a : (!tile.array<?x?xbf16>) -> !tile.map<64x64xbf16, 128>
  %mb = tile.tensor_map %b : (!tile.array<?x?xbf16>) -> !tile.map<64x32xbf16, 64>
  %mc = tile.tensor_map %c : (!tile.array<?x?xbf16>) -> !tile.map<64x32xbf16, 64>
  %as = tile.alloc : !tile.shared<{stages}, {A}>
  %bs = tile.alloc : !tile.shared<{stages}, {B}>
  %cs = tile.alloc : !tile.shared<1, {C}>
  %full = tile.mbarriers : !tile.barriers<{stages}>
  %empty = tile.mbarriers : !tile.barriers<{stages}>
  tile.mbarrier_init %full {{count = 1 : i64}} : (!tile.barriers<{stages}>)
  tile.mbarrier_init %empty {{count = {cluster} : i64}} : (!tile.barriers<{stages}>)
  tile.fence mbarrier_init
  READY
  tile.roles {{
    tile.role producer {{warps = 4 : i64, registers = 40 : i64, single}} {{
    ^body(%who: i32):
      %s2, %p2 = scf.for %t = %zero to %tiles step %one iter_args(%s0 = %zero, %p0 = %one) \
          -> (i32, i32) : i32 {{
        %bt = tile.mul %block, %tiles : i32
        %tt = tile.add %bt, %t : i32
        %row = tile.mul %tt, %height : i32
        %s1, %p1 = scf.for %k = %zero to %steps step %one iter_args(%s = %s0, %p = %p0) \
            -> (i32, i32) : i32 {{
          %column = tile.mul %k, %bk : i32
          %ar = tile.stage %as[%s] : (!tile.shared<{stages}, {A}>, i32) -> !tile.shared<1, {A}>
          %br = tile.stage %bs[%s] : (!tile.shared<{stages}, {B}>, i32) -> !tile.shared<1, {B}>
          tile.mbarrier_wait %empty[%s] %p : (!tile.barriers<{stages}>, i32, i32)
          tile.mbarrier_expect %full[%s] {{bytes = 12288 : i64}} : (!tile.barriers<{stages}>, i32)
          tile.tma_load %ma[%row, %column] %ar, %full[%s] \
              : (!tile.map<64x64xbf16, 128>, i32, i32, !tile.shared<1, {A}>, \
              !tile.barriers<{stages}>, i32)
          LOAD_B
          %sn, %pn = tile.ring_next %s, %p {{stages = {stages} : i64}} : (i32, i32) -> (i32, i32)
          scf.yield %sn, %pn : i32, i32
        }}
        scf.yield %s1, %p1 : i32, i32
      }}
    }}
    tile.role consumer {{warps = 4 : i64, registers = 232 : i64}} {{
    ^body(%who: i32):
      %s2, %p2 = scf.for %t = %zero to %tiles step %one iter_args(%s0 = %zero, %p0 = %zero) \
          -> (i32, i32) : i32 {{
        %bt = tile.mul %block, %tiles : i32
        %tt = tile.add %bt, %t : i32
        %row = tile.mul %tt, %height : i32
        %start = tile.constant 0.0 : {ACC}
        %sum, %s1, %p1 = scf.for %k = %zero to %steps step %one \
            iter_args(%acc = %start, %s = %s0, %p = %p0) -> ({ACC}, i32, i32) : i32 {{
          %ar = tile.stage %as[%s] : (!tile.shared<{stages}, {A}>, i32) -> !tile.shared<1, {A}>
          %br = tile.stage %bs[%s] : (!tile.shared<{stages}, {B}>, i32) -> !tile.shared<1, {B}>
          tile.mbarrier_wait %full[%s] %p : (!tile.barriers<{stages}>, i32, i32)
          tile.fence dot
          %d = tile.dot_async %ar, %br acc %acc \
              : (!tile.shared<1, {A}>, !tile.shared<1, {B}>, {ACC}) -> !tile.pending<{ACC}>
          tile.dot_commit
          %done = tile.dot_wait 0 [%d] : (!tile.pending<{ACC}>) -> {ACC}
          RELEASE
          %sn, %pn = tile.ring_next %s, %p {{stages = {stages} : i64}} : (i32, i32) -> (i32, i32)
          scf.yield %done, %sn, %pn : {ACC}, i32, i32
        }}
        %short = tile.cast %sum : {ACC} to {OUT}
        tile.bulk_wait 0 {{read}}
        tile.block_barrier
        tile.write %cs, %short : (!tile.shared<1, {C}>, {OUT})
        tile.fence async_shared
        tile.block_barrier
        tile.tma_store %mc[%row, %zero] %cs \
            : (!tile.map<64x32xbf16, 64>, i32, i32, !tile.shared<1, {C}>)
        tile.bulk_commit
        scf.yield %s1, %p1 : i32, i32
      }}
      tile.bulk_wait 0 {{read}}
    }}
  }}
  END
  tile.return
}}"""


ROW = f'!tile.tile<32x32xf32, "{blocked((32, 32), vector=4, warps=4)}">'
TURNED = f'!tile.tile<32x32xf32, "{blocked((32, 32), vector=4, warps=4, order=(0, 1))}">'
S0 = '32x32xf32, "32x32xb32"'
S = '32x32xf32, "32x32xb32 pad 16"'


def exchange(bar="tile.block_barrier", before="") -> str:
    """A consumer whose warps read a loaded buffer by ordinary reads in another layout, then free
    it: %n tiles summed. `bar`: what stands between the reads and the release.
    """
    buffer = f"!tile.shared<1, {S0}>"
    return f"""
tile.kernel @exchange(%x: !tile.array<?x?xf32>, %o: !tile.array<?x?xf32>, %n: i32) \
    {{level = 4 : i64}} {{
  %zero = tile.constant 0 : i32
  %one = tile.constant 1 : i32
  %width = tile.constant 32 : i32
  %m = tile.tensor_map %x : (!tile.array<?x?xf32>) -> !tile.map<32x32xf32, 0>
  %s = tile.alloc : {buffer}
  %full = tile.mbarriers : !tile.barriers<1>
  %empty = tile.mbarriers : !tile.barriers<1>
  tile.mbarrier_init %full {{count = 1 : i64}} : (!tile.barriers<1>)
  tile.mbarrier_init %empty {{count = 1 : i64}} : (!tile.barriers<1>)
  tile.fence mbarrier_init
  tile.block_barrier
  tile.roles {{
    tile.role producer {{warps = 1 : i64, single}} {{
    ^body(%who: i32):
      %p1 = scf.for %k = %zero to %n step %one iter_args(%p = %one) -> (i32) : i32 {{
        %column = tile.mul %k, %width : i32
        tile.mbarrier_wait %empty[%zero] %p : (!tile.barriers<1>, i32, i32)
        tile.mbarrier_expect %full[%zero] {{bytes = 4096 : i64}} : (!tile.barriers<1>, i32)
        tile.tma_load %m[%zero, %column] %s, %full[%zero] \
            : (!tile.map<32x32xf32, 0>, i32, i32, {buffer}, !tile.barriers<1>, i32)
        %pn = tile.xor %p, %one : i32
        scf.yield %pn : i32
      }}
    }}
    tile.role consumer {{warps = 4 : i64}} {{
    ^body(%who: i32):
      %start = tile.constant 0.0 : {TURNED}
      %sum, %p1 = scf.for %k = %zero to %n step %one iter_args(%a = %start, %p = %zero) \
          -> ({TURNED}, i32) : i32 {{
        %seen = tile.mbarrier_test %full[%zero] %p : (!tile.barriers<1>, i32, i32) -> i1
        tile.mbarrier_wait %full[%zero] %p unless %seen : (!tile.barriers<1>, i32, i32, i1)
        %v = tile.read %s : ({buffer}) -> {TURNED}
        %b = tile.add %a, %v : {TURNED}
        {before}
        {bar}
        tile.mbarrier_arrive %empty[%zero] : (!tile.barriers<1>, i32)
        %pn = tile.xor %p, %one : i32
        scf.yield %b, %pn : {TURNED}, i32
      }}
      tile.store %o[%zero, %zero] %sum {{extents = array<i64: 32, 32>}} \
          : (!tile.array<?x?xf32>, i32, i32, {TURNED})
    }}
  }}
  tile.return
}}"""


def ring(stages=3) -> str:
    """Sums the 32 x 32 blocks of a row of blocks by cp.async, read in another layout than they
    arrive: one role of four warps, stages − 1 blocks ahead.
    """
    buffer, ring_ = f"!tile.shared<1, {S}>", f"!tile.shared<{stages}, {S}>"
    prologue = "".join(
        f"""
  %i{i} = tile.constant {i} : i32
  %c{i} = tile.constant {32 * i} : i32
  %r{i} = tile.stage %ring[%i{i}] : ({ring_}, i32) -> {buffer}
  tile.cp_async %x[%zero, %c{i}] %r{i} {{extents = array<i64: 32, 32>}} \
      : (!tile.array<?x?xf32>, i32, i32, {buffer})
  tile.cp_commit"""
        for i in range(stages - 1)
    )
    return f"""
tile.kernel @ring(%x: !tile.array<?x?xf32>, %o: !tile.array<?x?xf32>, %n: i32) \
    {{level = 4 : i64, warps = 4 : i64}} {{
  %zero = tile.constant 0 : i32
  %one = tile.constant 1 : i32
  %width = tile.constant 32 : i32
  %ahead = tile.constant {stages - 1} : i32
  %ring = tile.alloc : {ring_}{prologue}
  %start = tile.constant 0.0 : {TURNED}
  %sum, %s2, %f2, %p2 = scf.for %i = %zero to %n step %one \
      iter_args(%a = %start, %s = %zero, %f = %ahead, %p = %zero) \
      -> ({TURNED}, i32, i32, i32) : i32 {{
    tile.cp_wait {stages - 2}
    tile.block_barrier
    %next = tile.add %i, %ahead : i32
    %column = tile.mul %next, %width : i32
    %free = tile.stage %ring[%f] : ({ring_}, i32) -> {buffer}
    tile.cp_async %x[%zero, %column] %free {{extents = array<i64: 32, 32>}} \
        : (!tile.array<?x?xf32>, i32, i32, {buffer})
    tile.cp_commit
    %here = tile.stage %ring[%s] : ({ring_}, i32) -> {buffer}
    %v = tile.read %here : ({buffer}) -> {TURNED}
    %b = tile.add %a, %v : {TURNED}
    %sn, %pn = tile.ring_next %s, %p {{stages = {stages} : i64}} : (i32, i32) -> (i32, i32)
    %fn, %pf = tile.ring_next %f, %p {{stages = {stages} : i64}} : (i32, i32) -> (i32, i32)
    scf.yield %b, %sn, %fn, %pn : {TURNED}, i32, i32, i32
  }}
  tile.cp_wait 0
  tile.store %o[%zero, %zero] %sum {{extents = array<i64: 32, 32>}} \
      : (!tile.array<?x?xf32>, i32, i32, {TURNED})
  tile.return
}}"""


def chain() -> str:
    """O = bf16(A·B)·V + (A·V): two groups in flight, the second dot's A from registers, an
    accumulator that goes from dot to dot. One role.
    """
    a, v = '64x64xbf16, "64x64xb16 swizzle 128"', '64x32xbf16, "64x32xb16 swizzle 64"'
    s, o, p = wgmma_accumulator(64, 64), wgmma_accumulator(64, 32), wgmma_a(64, 64)
    turned = SharedLayout.parse("64x64xb16 swizzle 128").transpose((1, 0))
    at = f'!tile.shared<1, 64x64xbf16, "{turned}">'
    wide, narrow, left = (
        f'!tile.tile<64x64xf32, "{s}">',
        f'!tile.tile<64x32xf32, "{o}">',
        f'!tile.tile<64x64xbf16, "{p}">',
    )
    return f"""
tile.kernel @chain(%a: !tile.array<?x?xbf16>, %b: !tile.array<?x?xbf16>, \
    %v: !tile.array<?x?xbf16>, %o: !tile.array<?x?xf32>, %use: i1) \
    {{level = 4 : i64, warps = 4 : i64}} {{
  %zero = tile.constant 0 : i32
  %ma = tile.tensor_map %a : (!tile.array<?x?xbf16>) -> !tile.map<64x64xbf16, 128>
  %mb = tile.tensor_map %b : (!tile.array<?x?xbf16>) -> !tile.map<64x64xbf16, 128>
  %mv = tile.tensor_map %v : (!tile.array<?x?xbf16>) -> !tile.map<64x32xbf16, 64>
  %mo = tile.tensor_map %o : (!tile.array<?x?xf32>) -> !tile.map<64x32xf32, 0>
  %as = tile.alloc : !tile.shared<1, {a}>
  %bs = tile.alloc : !tile.shared<1, {a}>
  %vs = tile.alloc : !tile.shared<1, {v}>
  %os = tile.alloc : !tile.shared<1, 64x32xf32, "64x32xb32">
  %bar = tile.mbarriers : !tile.barriers<1>
  tile.mbarrier_init %bar {{count = 1 : i64}} : (!tile.barriers<1>)
  tile.fence mbarrier_init
  tile.block_barrier
  tile.mbarrier_expect %bar[%zero] {{bytes = 20480 : i64}} : (!tile.barriers<1>, i32)
  tile.tma_load %ma[%zero, %zero] %as, %bar[%zero] \
      : (!tile.map<64x64xbf16, 128>, i32, i32, !tile.shared<1, {a}>, !tile.barriers<1>, i32)
  tile.tma_load %mb[%zero, %zero] %bs, %bar[%zero] \
      : (!tile.map<64x64xbf16, 128>, i32, i32, !tile.shared<1, {a}>, !tile.barriers<1>, i32)
  tile.tma_load %mv[%zero, %zero] %vs, %bar[%zero] \
      : (!tile.map<64x32xbf16, 64>, i32, i32, !tile.shared<1, {v}>, !tile.barriers<1>, i32)
  tile.mbarrier_wait %bar[%zero] %zero : (!tile.barriers<1>, i32, i32)
  tile.fence dot
  %bt = tile.shared_transpose %bs {{permutation = array<i64: 1, 0>}} \
      : (!tile.shared<1, {a}>) -> {at}
  %s = tile.dot_async %as, %bt : (!tile.shared<1, {a}>, {at}) -> !tile.pending<{wide}>
  tile.dot_commit
  tile.fence dot
  %t = tile.dot_async %as, %vs \
      : (!tile.shared<1, {a}>, !tile.shared<1, {v}>) -> !tile.pending<{narrow}>
  tile.dot_commit
  %s1, %t1 = tile.dot_wait 1 [%s, %t] \
      : (!tile.pending<{wide}>, !tile.pending<{narrow}>) -> ({wide}, !tile.pending<{narrow}>)
  %p = tile.convert %s1 : ({wide}) -> !tile.tile<64x64xf32, "{p}">
  %h = tile.cast %p : !tile.tile<64x64xf32, "{p}"> to {left}
  tile.fence dot
  %u = tile.dot_async %h, %vs acc %t1 keep %use \
      : ({left}, !tile.shared<1, {v}>, !tile.pending<{narrow}>, i1) -> !tile.pending<{narrow}>
  tile.dot_commit
  %r = tile.dot_wait 0 [%u] : (!tile.pending<{narrow}>) -> {narrow}
  tile.write %os, %r : (!tile.shared<1, 64x32xf32, "64x32xb32">, {narrow})
  tile.fence async_shared
  tile.block_barrier
  tile.tma_store %mo[%zero, %zero] %os {{reduce = "add"}} \
      : (!tile.map<64x32xf32, 0>, i32, i32, !tile.shared<1, 64x32xf32, "64x32xb32">)
  tile.bulk_commit
  tile.bulk_wait 0
  tile.return
}}"""


def turns() -> str:
    """Two consumers write one buffer in turn, by named barriers: consumer 0 starts, each tells the
    other. Every round adds 1 + who to a row of `o`.
    """
    t, b = (
        f'!tile.tile<32x32xf32, "{blocked((32, 32), vector=4, warps=4)}">',
        '!tile.shared<1, 32x32xf32, "32x32xb32">',
    )
    return f"""
tile.kernel @turns(%o: !tile.array<?x?xf32>, %n: i32) {{level = 4 : i64, persistent}} {{
  %zero = tile.constant 0 : i32
  %one = tile.constant 1 : i32
  %three = tile.constant 3 : i32
  %rows = tile.constant 32 : i32
  %first = tile.identity cluster : i32
  %step = tile.identity clusters : i32
  %buffer = tile.alloc : {b}
  %empty = tile.constant 0.0 : {t}
  tile.write %buffer, %empty : ({b}, {t})
  tile.block_barrier
  tile.roles {{
    tile.role worker {{warps = 4 : i64, copies = 2 : i64}} {{
    ^body(%who: i32):
      %other = tile.sub %one, %who : i32
      %mine = tile.add %who, %three : i32
      %theirs = tile.add %other, %three : i32
      %second = tile.eq %who, %one : i32
      scf.if %second {{
        tile.barrier_arrive %theirs {{threads = 256 : i64}} : (i32)
      }}
      scf.for %i = %first to %n step %step : i32 {{
        tile.barrier %mine {{threads = 256 : i64}} : (i32)
        %old = tile.read %buffer : ({b}) -> {t}
        %w = tile.add %who, %one : i32
        %f = tile.cast %w : i32 to f32
        %fs = tile.splat %f : (f32) -> {t}
        %new = tile.add %old, %fs : {t}
        tile.write %buffer, %new : ({b}, {t})
        scf.if %second {{
          %row = tile.mul %i, %rows : i32
          tile.store %o[%row, %zero] %new {{extents = array<i64: 32, 32>}} \
              : (!tile.array<?x?xf32>, i32, i32, {t})
        }}
        tile.barrier_arrive %theirs {{threads = 256 : i64}} : (i32)
      }}
    }}
  }}
  tile.return
}}"""
