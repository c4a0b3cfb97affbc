"""Small level-4 programs as text: a TMA ring with two roles and a cp.async ring with one. Mutants are changes of the text."""
from tkc.ir.fragments import wgmma_accumulator
from tkc.ir.layout import blocked

BF = "bf16"
A, B = '64x64xbf16, "64x64xb16 swizzle 128"', '64x32xbf16, "64x32xb16 swizzle 64"'
C = '64x32xbf16, "64x32xb16 swizzle 64"'
ACC = f'!tile.tile<64x32xf32, "{wgmma_accumulator(64, 32)}">'
OUT = f'!tile.tile<64x32xbf16, "{wgmma_accumulator(64, 32)}">'


def product(stages=2, tiles=1) -> str:
    """C[64 t, 32] = A·B, K in steps of 64: a producer of one thread, a consumer of four warps, a store by TMA; `tiles` of C a block, one after the other."""
    return f'''
tile.kernel @product(%a: !tile.array<?x?xbf16>, %b: !tile.array<?x?xbf16>, %c: !tile.array<?x?xbf16>, %steps: i32) {{level = 4 : i64}} {{
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
  tile.mbarrier_init %empty {{count = 1 : i64}} : (!tile.barriers<{stages}>)
  tile.fence mbarrier_init
  tile.block_barrier
  tile.roles {{
    tile.role producer {{warps = 4 : i64, registers = 40 : i64, single}} {{
    ^body(%who: i32):
      %s2, %p2 = scf.for %t = %zero to %tiles step %one iter_args(%s0 = %zero, %p0 = %one) -> (i32, i32) : i32 {{
        %row = tile.mul %t, %height : i32
        %s1, %p1 = scf.for %k = %zero to %steps step %one iter_args(%s = %s0, %p = %p0) -> (i32, i32) : i32 {{
          %column = tile.mul %k, %bk : i32
          %ar = tile.stage %as[%s] : (!tile.shared<{stages}, {A}>, i32) -> !tile.shared<1, {A}>
          %br = tile.stage %bs[%s] : (!tile.shared<{stages}, {B}>, i32) -> !tile.shared<1, {B}>
          tile.mbarrier_wait %empty[%s] %p : (!tile.barriers<{stages}>, i32, i32)
          tile.mbarrier_expect %full[%s] {{bytes = 12288 : i64}} : (!tile.barriers<{stages}>, i32)
          tile.tma_load %ma[%row, %column] %ar, %full[%s] : (!tile.map<64x64xbf16, 128>, i32, i32, !tile.shared<1, {A}>, !tile.barriers<{stages}>, i32)
          tile.tma_load %mb[%column, %zero] %br, %full[%s] : (!tile.map<64x32xbf16, 64>, i32, i32, !tile.shared<1, {B}>, !tile.barriers<{stages}>, i32)
          %sn, %pn = tile.ring_next %s, %p {{stages = {stages} : i64}} : (i32, i32) -> (i32, i32)
          scf.yield %sn, %pn : i32, i32
        }}
        scf.yield %s1, %p1 : i32, i32
      }}
    }}
    tile.role consumer {{warps = 4 : i64, registers = 232 : i64}} {{
    ^body(%who: i32):
      %s2, %p2 = scf.for %t = %zero to %tiles step %one iter_args(%s0 = %zero, %p0 = %zero) -> (i32, i32) : i32 {{
        %row = tile.mul %t, %height : i32
        %start = tile.constant 0.0 : {ACC}
        %sum, %s1, %p1 = scf.for %k = %zero to %steps step %one iter_args(%acc = %start, %s = %s0, %p = %p0) -> ({ACC}, i32, i32) : i32 {{
          %ar = tile.stage %as[%s] : (!tile.shared<{stages}, {A}>, i32) -> !tile.shared<1, {A}>
          %br = tile.stage %bs[%s] : (!tile.shared<{stages}, {B}>, i32) -> !tile.shared<1, {B}>
          tile.mbarrier_wait %full[%s] %p : (!tile.barriers<{stages}>, i32, i32)
          tile.fence dot
          %d = tile.dot_async %ar, %br acc %acc : (!tile.shared<1, {A}>, !tile.shared<1, {B}>, {ACC}) -> !tile.pending<{ACC}>
          tile.dot_commit
          %done = tile.dot_wait 0 [%d] : (!tile.pending<{ACC}>) -> {ACC}
          tile.mbarrier_arrive %empty[%s] : (!tile.barriers<{stages}>, i32)
          %sn, %pn = tile.ring_next %s, %p {{stages = {stages} : i64}} : (i32, i32) -> (i32, i32)
          scf.yield %done, %sn, %pn : {ACC}, i32, i32
        }}
        %short = tile.cast %sum : {ACC} to {OUT}
        tile.bulk_wait 0 {{read}}
        tile.block_barrier
        tile.write %cs, %short : (!tile.shared<1, {C}>, {OUT})
        tile.fence async_shared
        tile.block_barrier
        tile.tma_store %mc[%row, %zero] %cs : (!tile.map<64x32xbf16, 64>, i32, i32, !tile.shared<1, {C}>)
        tile.bulk_commit
        scf.yield %s1, %p1 : i32, i32
      }}
      tile.bulk_wait 0 {{read}}
    }}
  }}
  tile.return
}}'''


ROW = f'!tile.tile<32x32xf32, "{blocked((32, 32), vector=4, warps=4)}">'
TURNED = f'!tile.tile<32x32xf32, "{blocked((32, 32), vector=4, warps=4, order=(0, 1))}">'
S = '32x32xf32, "32x32xb32 pad 16"'


def ring(stages=3) -> str:
    """Sums the 32 x 32 blocks of a row of blocks by cp.async, read in another layout than they arrive: one role of four warps, stages − 1 blocks ahead."""
    buffer, ring_ = f"!tile.shared<1, {S}>", f"!tile.shared<{stages}, {S}>"
    prologue = "".join(f'''
  %i{i} = tile.constant {i} : i32
  %c{i} = tile.constant {32 * i} : i32
  %r{i} = tile.stage %ring[%i{i}] : ({ring_}, i32) -> {buffer}
  tile.cp_async %x[%zero, %c{i}] %r{i} {{extents = array<i64: 32, 32>}} : (!tile.array<?x?xf32>, i32, i32, {buffer})
  tile.cp_commit''' for i in range(stages - 1))
    return f'''
tile.kernel @ring(%x: !tile.array<?x?xf32>, %o: !tile.array<?x?xf32>, %n: i32) {{level = 4 : i64, warps = 4 : i64}} {{
  %zero = tile.constant 0 : i32
  %one = tile.constant 1 : i32
  %width = tile.constant 32 : i32
  %ahead = tile.constant {stages - 1} : i32
  %ring = tile.alloc : {ring_}{prologue}
  %start = tile.constant 0.0 : {TURNED}
  %sum, %s2, %f2, %p2 = scf.for %i = %zero to %n step %one iter_args(%a = %start, %s = %zero, %f = %ahead, %p = %zero) -> ({TURNED}, i32, i32, i32) : i32 {{
    tile.cp_wait {stages - 2}
    tile.block_barrier
    %next = tile.add %i, %ahead : i32
    %column = tile.mul %next, %width : i32
    %free = tile.stage %ring[%f] : ({ring_}, i32) -> {buffer}
    tile.cp_async %x[%zero, %column] %free {{extents = array<i64: 32, 32>}} : (!tile.array<?x?xf32>, i32, i32, {buffer})
    tile.cp_commit
    %here = tile.stage %ring[%s] : ({ring_}, i32) -> {buffer}
    %v = tile.read %here : ({buffer}) -> {TURNED}
    %b = tile.add %a, %v : {TURNED}
    %sn, %pn = tile.ring_next %s, %p {{stages = {stages} : i64}} : (i32, i32) -> (i32, i32)
    %fn, %pf = tile.ring_next %f, %p {{stages = {stages} : i64}} : (i32, i32) -> (i32, i32)
    scf.yield %b, %sn, %fn, %pn : {TURNED}, i32, i32, i32
  }}
  tile.cp_wait 0
  tile.store %o[%zero, %zero] %sum {{extents = array<i64: 32, 32>}} : (!tile.array<?x?xf32>, i32, i32, {TURNED})
  tile.return
}}'''
