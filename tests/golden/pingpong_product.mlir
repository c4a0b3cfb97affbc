// C = A·B, bf16 with f32 accumulation: a [M, K], b [K, N], c [M, N], rows of a multiple of 16 bytes, K >= 1.  Grid: (⌈M / 128⌉, ⌈N / 192⌉).
//
// Two tiles at once in a block, in turns: each consumer of 4 warps owns every second tile of 128 x 192 and has the tensor cores for itself while
// the other one writes its tile.  Named barriers 1 and 2 hand the turn over: whoever has issued its last dots arrives on the other's.
// A producer thread keeps a ring of 5 stages full; a consumer steps over the stages of the other's tile.
!array = !tile.array<?x?xbf16, "strides 8 =1 align 16">
!acc = !tile.tile<128x192xf32, "wgmma 128x192">
!sum = !tile.pending<!acc>
!part = !tile.tile<64x64xf32, "wgmma 64x64">
!half = !tile.tile<64x64xbf16, "wgmma 64x64">
!a_ring = !tile.shared<5, 128x64xbf16, "128x64xb16 swizzle 128">
!a = !tile.shared<1, 128x64xbf16, "128x64xb16 swizzle 128">
!b_ring = !tile.shared<5, 64x192xbf16, "64x192xb16 swizzle 128">
!b = !tile.shared<1, 64x192xbf16, "64x192xb16 swizzle 128">
!subtiles = !tile.shared<2, 64x64xbf16, "64x64xb16 swizzle 128">
!subtile = !tile.shared<1, 64x64xbf16, "64x64xb16 swizzle 128">
!load_a = !tile.map<128x64xbf16, 128>
!load_b = !tile.map<64x192xbf16, 128>
!store = !tile.map<64x64xbf16, 128>
!bars = !tile.barriers<5>

builtin.module {
  tile.kernel @pingpong_product(%a: !array, %b: !array, %c: !array)
      {warps = 8 : i64, level = 4 : i64, target = "sm_90a", persistent, shared_bytes = 221264 : i64, argument_names = ["a", "b", "c"]} {
    %0 = tile.constant 0 : i32
    %1 = tile.constant 1 : i32
    %2 = tile.constant 2 : i32
    %5 = tile.constant 5 : i32
    %8 = tile.constant 8 : i32
    %63 = tile.constant 63 : i32
    %64 = tile.constant 64 : i32
    %128 = tile.constant 128 : i32
    %192 = tile.constant 192 : i32
    %half = tile.constant 0.5 : f32
    %map_a = tile.tensor_map %a : (!array) -> !load_a
    %map_b = tile.tensor_map %b : (!array) -> !load_b
    %map_c = tile.tensor_map %c : (!array) -> !store
    %as = tile.alloc 0 : !a_ring
    %bs = tile.alloc 81920 : !b_ring
    %subtiles = tile.alloc 204800 : !subtiles
    %full = tile.mbarriers 221184 : !bars
    %empty = tile.mbarriers 221224 : !bars
    tile.mbarrier_init %full {count = 1 : i64} : (!bars)
    tile.mbarrier_init %empty {count = 1 : i64} : (!bars)         // the consumer whose tile it is
    tile.fence mbarrier_init

    // Tiles are walked in groups of 8 along M.  Quotients by floating point: exact below 2^20.
    %K = tile.dim %a, 1 : (!array) -> i32
    %K_up = tile.add %K, %63 : i32
    %steps = tile.floordiv %K_up, %64 : i32
    %tiles_m = tile.num_programs 0 : i32
    %tiles_n = tile.num_programs 1 : i32
    %tiles = tile.mul %tiles_m, %tiles_n : i32
    %span = tile.mul %tiles_n, %8 : i32
    %span_f = tile.cast %span : i32 to f32
    %block = tile.identity block : i32
    %blocks = tile.identity blocks : i32

    // the first tile's coordinates, in the shadow of the barrier
    %t0_f = tile.cast %block : i32 to f32
    %t0_h = tile.add %t0_f, %half : f32
    %g0_f = tile.div %t0_h, %span_f : f32
    %g0 = tile.cast %g0_f : f32 to i32
    %g0_start = tile.mul %g0, %span : i32
    %r0 = tile.sub %block, %g0_start : i32
    %first0 = tile.mul %g0, %8 : i32
    %left0 = tile.sub %tiles_m, %first0 : i32
    %rows0 = tile.min %left0, %8 : i32
    %r0_f = tile.cast %r0 : i32 to f32
    %r0_h = tile.add %r0_f, %half : f32
    %rows0_f = tile.cast %rows0 : i32 to f32
    %col0_f = tile.div %r0_h, %rows0_f : f32
    %col0 = tile.cast %col0_f : f32 to i32
    %col0_rows = tile.mul %col0, %rows0 : i32
    %in0 = tile.sub %r0, %col0_rows : i32
    %row0 = tile.add %first0, %in0 : i32
    %m0 = tile.mul %row0, %128 : i32
    %n0 = tile.mul %col0, %192 : i32
    tile.block_barrier

    tile.roles {
      tile.role producer {warps = 4 : i64, copies = 1 : i64, registers = 40 : i64, single} {
      ^bb0(%who: i32):
        %end_s, %end_p, %end_m, %end_n = scf.for %tile = %block to %tiles step %blocks iter_args(%s0 = %0, %p0 = %1, %m = %m0, %n = %n0) -> (i32, i32, i32, i32) : i32 {
          %s_end, %p_end = scf.for %k = %0 to %K step %64 iter_args(%s = %s0, %p = %p0) -> (i32, i32) : i32 {
            tile.mbarrier_wait %empty[%s] %p : (!bars, i32, i32)
            tile.mbarrier_expect %full[%s] {bytes = 40960 : i64} : (!bars, i32)
            %as_s = tile.stage %as[%s] : (!a_ring, i32) -> !a
            %bs_s = tile.stage %bs[%s] : (!b_ring, i32) -> !b
            tile.tma_load %map_a[%m, %k] %as_s, %full[%s] : (!load_a, i32, i32, !a, !bars, i32)
            tile.tma_load %map_b[%k, %n] %bs_s, %full[%s] : (!load_b, i32, i32, !b, !bars, i32)
            %s_next, %p_next = tile.ring_next %s, %p {stages = 5 : i64} : (i32, i32) -> (i32, i32)
            scf.yield %s_next, %p_next : i32, i32
          }
          %t = tile.add %tile, %blocks : i32
          %t_f = tile.cast %t : i32 to f32
          %t_h = tile.add %t_f, %half : f32
          %g_f = tile.div %t_h, %span_f : f32
          %g = tile.cast %g_f : f32 to i32
          %g_start = tile.mul %g, %span : i32
          %r = tile.sub %t, %g_start : i32
          %first = tile.mul %g, %8 : i32
          %left = tile.sub %tiles_m, %first : i32
          %rows = tile.min %left, %8 : i32
          %r_f = tile.cast %r : i32 to f32
          %r_h = tile.add %r_f, %half : f32
          %rows_f = tile.cast %rows : i32 to f32
          %col_f = tile.div %r_h, %rows_f : f32
          %col = tile.cast %col_f : f32 to i32
          %col_rows = tile.mul %col, %rows : i32
          %in = tile.sub %r, %col_rows : i32
          %row = tile.add %first, %in : i32
          %m_next = tile.mul %row, %128 : i32
          %n_next = tile.mul %col, %192 : i32
          scf.yield %s_end, %p_end, %m_next, %n_next : i32, i32, i32, i32
        }
        // the block's shared memory outlives every copy into it
        %gone_s, %gone_p = scf.for %i = %0 to %5 step %1 iter_args(%s = %end_s, %p = %end_p) -> (i32, i32) : i32 {
          tile.mbarrier_wait %empty[%s] %p : (!bars, i32, i32)
          %s_next, %p_next = tile.ring_next %s, %p {stages = 5 : i64} : (i32, i32) -> (i32, i32)
          scf.yield %s_next, %p_next : i32, i32
        }
      }
      tile.role consumer {warps = 4 : i64, copies = 2 : i64, registers = 232 : i64} {
      ^bb0(%who: i32):
        %subtile = tile.stage %subtiles[%who] : (!subtiles, i32) -> !subtile
        %my_turn = tile.add %who, %1 : i32
        %its_turn = tile.sub %2, %who : i32
        %second = tile.eq %who, %1 : i32
        scf.if %second {                                            // the first turn is the first consumer's
          tile.barrier_arrive %its_turn {threads = 256 : i64} : (i32)
        }
        %skipped = tile.mul %who, %blocks : i32
        %start = tile.add %block, %skipped : i32
        %stride = tile.mul %blocks, %2 : i32
        %over = tile.mul %who, %steps : i32
        %first_s, %first_p = tile.ring_next %0, %0 steps %over {stages = 5 : i64} : (i32, i32, i32) -> (i32, i32)
        %end_s, %end_p = scf.for %tile = %start to %tiles step %stride iter_args(%s0 = %first_s, %p0 = %first_p) -> (i32, i32) : i32 {
          tile.barrier %my_turn {threads = 256 : i64} : (i32)
          // the first k-step starts the sum
          tile.mbarrier_wait %full[%s0] %p0 : (!bars, i32, i32)
          %a0 = tile.stage %as[%s0] : (!a_ring, i32) -> !a
          %b0 = tile.stage %bs[%s0] : (!b_ring, i32) -> !b
          tile.fence dot
          %d0 = tile.dot_async %a0, %b0 : (!a, !b) -> !sum
          tile.dot_commit
          // this tile's coordinates, in its shadow
          %t_f = tile.cast %tile : i32 to f32
          %t_h = tile.add %t_f, %half : f32
          %g_f = tile.div %t_h, %span_f : f32
          %g = tile.cast %g_f : f32 to i32
          %g_start = tile.mul %g, %span : i32
          %r = tile.sub %tile, %g_start : i32
          %first = tile.mul %g, %8 : i32
          %left = tile.sub %tiles_m, %first : i32
          %rows = tile.min %left, %8 : i32
          %r_f = tile.cast %r : i32 to f32
          %r_h = tile.add %r_f, %half : f32
          %rows_f = tile.cast %rows : i32 to f32
          %col_f = tile.div %r_h, %rows_f : f32
          %col = tile.cast %col_f : f32 to i32
          %col_rows = tile.mul %col, %rows : i32
          %in = tile.sub %r, %col_rows : i32
          %row = tile.add %first, %in : i32
          %m = tile.mul %row, %128 : i32
          %n = tile.mul %col, %192 : i32
          %m_low = tile.add %m, %64 : i32
          %n1 = tile.add %n, %64 : i32
          %n2 = tile.add %n, %128 : i32
          %s1, %p1 = tile.ring_next %s0, %p0 {stages = 5 : i64} : (i32, i32) -> (i32, i32)
          %last, %last_s, %s_end, %p_end = scf.for %k = %1 to %steps step %1 iter_args(%old = %d0, %before = %s0, %s = %s1, %p = %p1) -> (!sum, i32, i32, i32) : i32 {
            tile.mbarrier_wait %full[%s] %p : (!bars, i32, i32)
            %a_s = tile.stage %as[%s] : (!a_ring, i32) -> !a
            %b_s = tile.stage %bs[%s] : (!b_ring, i32) -> !b
            tile.fence dot
            %d = tile.dot_async %a_s, %b_s acc %old : (!a, !b, !sum) -> !sum
            tile.dot_commit
            %new = tile.dot_wait 1 [%d] : (!sum) -> !sum
            tile.mbarrier_arrive %empty[%before] : (!bars, i32)
            %s_next, %p_next = tile.ring_next %s, %p {stages = 5 : i64} : (i32, i32) -> (i32, i32)
            scf.yield %new, %s, %s_next, %p_next : !sum, i32, i32, i32
          }
          tile.barrier_arrive %its_turn {threads = 256 : i64} : (i32)      // my dots are issued
          %sum = tile.dot_wait 0 [%last] : (!sum) -> !acc
          tile.mbarrier_arrive %empty[%last_s] : (!bars, i32)

          // 64 rows of 64 columns at a time: wait until the subtile is free, fill it, send it
          %x0 = tile.slice %sum {offsets = array<i64: 0, 0>} : (!acc) -> !part
          %h0 = tile.cast %x0 : !part to !half
          tile.bulk_wait 0 {read}
          tile.block_barrier
          tile.write %subtile, %h0 : (!subtile, !half)
          tile.fence async_shared
          tile.block_barrier
          tile.tma_store %map_c[%m, %n] %subtile : (!store, i32, i32, !subtile)
          tile.bulk_commit
          %x1 = tile.slice %sum {offsets = array<i64: 0, 64>} : (!acc) -> !part
          %h1 = tile.cast %x1 : !part to !half
          tile.bulk_wait 0 {read}
          tile.block_barrier
          tile.write %subtile, %h1 : (!subtile, !half)
          tile.fence async_shared
          tile.block_barrier
          tile.tma_store %map_c[%m, %n1] %subtile : (!store, i32, i32, !subtile)
          tile.bulk_commit
          %x2 = tile.slice %sum {offsets = array<i64: 0, 128>} : (!acc) -> !part
          %h2 = tile.cast %x2 : !part to !half
          tile.bulk_wait 0 {read}
          tile.block_barrier
          tile.write %subtile, %h2 : (!subtile, !half)
          tile.fence async_shared
          tile.block_barrier
          tile.tma_store %map_c[%m, %n2] %subtile : (!store, i32, i32, !subtile)
          tile.bulk_commit
          %x3 = tile.slice %sum {offsets = array<i64: 64, 0>} : (!acc) -> !part
          %h3 = tile.cast %x3 : !part to !half
          tile.bulk_wait 0 {read}
          tile.block_barrier
          tile.write %subtile, %h3 : (!subtile, !half)
          tile.fence async_shared
          tile.block_barrier
          tile.tma_store %map_c[%m_low, %n] %subtile : (!store, i32, i32, !subtile)
          tile.bulk_commit
          %x4 = tile.slice %sum {offsets = array<i64: 64, 64>} : (!acc) -> !part
          %h4 = tile.cast %x4 : !part to !half
          tile.bulk_wait 0 {read}
          tile.block_barrier
          tile.write %subtile, %h4 : (!subtile, !half)
          tile.fence async_shared
          tile.block_barrier
          tile.tma_store %map_c[%m_low, %n1] %subtile : (!store, i32, i32, !subtile)
          tile.bulk_commit
          %x5 = tile.slice %sum {offsets = array<i64: 64, 128>} : (!acc) -> !part
          %h5 = tile.cast %x5 : !part to !half
          tile.bulk_wait 0 {read}
          tile.block_barrier
          tile.write %subtile, %h5 : (!subtile, !half)
          tile.fence async_shared
          tile.block_barrier
          tile.tma_store %map_c[%m_low, %n2] %subtile : (!store, i32, i32, !subtile)
          tile.bulk_commit
          %s_over, %p_over = tile.ring_next %s_end, %p_end steps %steps {stages = 5 : i64} : (i32, i32, i32) -> (i32, i32)
          scf.yield %s_over, %p_over : i32, i32
        }
        tile.bulk_wait 0 {read}
      }
    }
    tile.return
  }
}
