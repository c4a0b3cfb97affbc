// C = A·Bᵀ, bf16 with f32 accumulation: a [M, K], b [N, K], c [M, N], rows of a multiple of 16 bytes, K >= 1.  Grid: (⌈M / 128⌉, ⌈N / 256⌉).
//
// Tiles of 128 x 256, k-steps of 64.  The two blocks of a cluster have tiles under each other and share B: each loads half of it for both.
// A producer thread keeps a ring of 4 stages full; two consumers of 4 warps split a tile's rows, each keeps one group of dots in flight
// and releases a stage, in both blocks, one step late.  The output leaves through two 64 x 64 subtiles for each consumer, while the producer
// already loads the next tile.
!array = !tile.array<?x?xbf16, "strides 8 =1 align 16">
!acc = !tile.tile<64x256xf32, "wgmma 64x256">
!sum = !tile.pending<!acc>
!part = !tile.tile<64x64xf32, "wgmma 64x64">
!half = !tile.tile<64x64xbf16, "wgmma 64x64">
!a_ring = !tile.shared<4, 128x64xbf16, "128x64xb16 swizzle 128">
!a = !tile.shared<1, 128x64xbf16, "128x64xb16 swizzle 128">
!a_rows = !tile.shared<1, 64x64xbf16, "64x64xb16 swizzle 128 panel_stride 16384">
!b_ring = !tile.shared<4, 256x64xbf16, "256x64xb16 swizzle 128">
!b = !tile.shared<1, 256x64xbf16, "256x64xb16 swizzle 128">
!b_half = !tile.shared<1, 128x64xbf16, "128x64xb16 swizzle 128 panel_stride 32768">
!b_t = !tile.shared<1, 64x256xbf16, "64x256xb16 swizzle 128 order 0x1">
!subtiles = !tile.shared<4, 64x64xbf16, "64x64xb16 swizzle 128">
!subtile = !tile.shared<1, 64x64xbf16, "64x64xb16 swizzle 128">
!load = !tile.map<128x64xbf16, 128>
!store = !tile.map<64x64xbf16, 128>
!bars = !tile.barriers<4>

builtin.module {
  tile.kernel @cooperative_product(%a: !array, %b: !array, %c: !array)
      {warps = 8 : i64, level = 4 : i64, target = "sm_90a", cluster = [2, 1], persistent, shared_bytes = 229440 : i64, argument_names = ["a", "b", "c"]} {
    %0 = tile.constant 0 : i32
    %1 = tile.constant 1 : i32
    %2 = tile.constant 2 : i32
    %4 = tile.constant 4 : i32
    %8 = tile.constant 8 : i32
    %63 = tile.constant 63 : i32
    %64 = tile.constant 64 : i32
    %128 = tile.constant 128 : i32
    %192 = tile.constant 192 : i32
    %256 = tile.constant 256 : i32
    %both = tile.constant 3 : i32                                 // the blocks of the cluster, as a mask
    %half = tile.constant 0.5 : f32
    %map_a = tile.tensor_map %a : (!array) -> !load
    %map_b = tile.tensor_map %b : (!array) -> !load
    %map_c = tile.tensor_map %c : (!array) -> !store
    %as = tile.alloc 0 : !a_ring
    %bs = tile.alloc 65536 : !b_ring
    %subtiles = tile.alloc 196608 : !subtiles
    %full = tile.mbarriers 229376 : !bars
    %empty = tile.mbarriers 229408 : !bars
    tile.mbarrier_init %full {count = 1 : i64} : (!bars)          // the producer's; and the bytes of A and of both halves of B
    tile.mbarrier_init %empty {count = 4 : i64} : (!bars)         // two consumers in each of two blocks
    tile.fence mbarrier_init

    // Cluster tiles of 256 x 256, walked in groups of 8 along M.  Quotients by floating point: exact below 2^20.
    %K = tile.dim %a, 1 : (!array) -> i32
    %K_up = tile.add %K, %63 : i32
    %steps = tile.floordiv %K_up, %64 : i32
    %grid_m = tile.num_programs 0 : i32
    %grid_n = tile.num_programs 1 : i32
    %grid_m_up = tile.add %grid_m, %1 : i32
    %tiles_m = tile.floordiv %grid_m_up, %2 : i32
    %tiles = tile.mul %tiles_m, %grid_n : i32
    %span = tile.mul %grid_n, %8 : i32
    %span_f = tile.cast %span : i32 to f32
    %cluster = tile.identity cluster : i32
    %clusters = tile.identity clusters : i32
    %rank = tile.identity cluster_rank : i32
    %rank_row = tile.mul %rank, %128 : i32

    // the first tile's coordinates, in the shadow of the barrier
    %t0_f = tile.cast %cluster : i32 to f32
    %t0_h = tile.add %t0_f, %half : f32
    %g0_f = tile.div %t0_h, %span_f : f32
    %g0 = tile.cast %g0_f : f32 to i32
    %g0_start = tile.mul %g0, %span : i32
    %r0 = tile.sub %cluster, %g0_start : i32
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
    %m0_pair = tile.mul %row0, %256 : i32
    %m0 = tile.add %m0_pair, %rank_row : i32
    %n0 = tile.mul %col0, %256 : i32
    tile.cluster_arrive {relaxed}
    tile.cluster_wait

    tile.roles {
      tile.role producer {warps = 4 : i64, copies = 1 : i64, registers = 40 : i64, single} {
      ^bb0(%who: i32):
        %end_s, %end_p, %end_m, %end_n = scf.for %tile = %cluster to %tiles step %clusters iter_args(%s0 = %0, %p0 = %1, %m = %m0, %n = %n0) -> (i32, i32, i32, i32) : i32 {
          %n_half = tile.add %n, %rank_row : i32
          %s_end, %p_end = scf.for %k = %0 to %K step %64 iter_args(%s = %s0, %p = %p0) -> (i32, i32) : i32 {
            tile.mbarrier_wait %empty[%s] %p : (!bars, i32, i32)
            tile.mbarrier_expect %full[%s] {bytes = 49152 : i64} : (!bars, i32)
            %as_s = tile.stage %as[%s] : (!a_ring, i32) -> !a
            %bs_s = tile.stage %bs[%s] : (!b_ring, i32) -> !b
            %mine = tile.shared_slice %bs_s[%rank_row, %0] : (!b, i32, i32) -> !b_half
            tile.tma_load %map_a[%m, %k] %as_s, %full[%s] : (!load, i32, i32, !a, !bars, i32)
            tile.tma_load %map_b[%n_half, %k] %mine, %full[%s] to %both : (!load, i32, i32, !b_half, !bars, i32, i32)
            %s_next, %p_next = tile.ring_next %s, %p {stages = 4 : i64} : (i32, i32) -> (i32, i32)
            scf.yield %s_next, %p_next : i32, i32
          }
          %t = tile.add %tile, %clusters : i32
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
          %m_pair = tile.mul %row, %256 : i32
          %m_next = tile.add %m_pair, %rank_row : i32
          %n_next = tile.mul %col, %256 : i32
          scf.yield %s_end, %p_end, %m_next, %n_next : i32, i32, i32, i32
        }
        // no block ends while its peer may still write to it or arrive in it
        %gone_s, %gone_p = scf.for %i = %0 to %4 step %1 iter_args(%s = %end_s, %p = %end_p) -> (i32, i32) : i32 {
          tile.mbarrier_wait %empty[%s] %p : (!bars, i32, i32)
          %s_next, %p_next = tile.ring_next %s, %p {stages = 4 : i64} : (i32, i32) -> (i32, i32)
          scf.yield %s_next, %p_next : i32, i32
        }
      }
      tile.role consumer {warps = 4 : i64, copies = 2 : i64, registers = 232 : i64} {
      ^bb0(%who: i32):
        %my_row = tile.mul %who, %64 : i32
        %who_2 = tile.mul %who, %2 : i32
        %who_3 = tile.add %who_2, %1 : i32
        %slab0 = tile.stage %subtiles[%who_2] : (!subtiles, i32) -> !subtile
        %slab1 = tile.stage %subtiles[%who_3] : (!subtiles, i32) -> !subtile
        %end_s, %end_p = scf.for %tile = %cluster to %tiles step %clusters iter_args(%s0 = %0, %p0 = %0) -> (i32, i32) : i32 {
          // the first k-step starts the sum
          tile.mbarrier_wait %full[%s0] %p0 : (!bars, i32, i32)
          %a0 = tile.stage %as[%s0] : (!a_ring, i32) -> !a
          %a0_rows = tile.shared_slice %a0[%my_row, %0] : (!a, i32, i32) -> !a_rows
          %b0 = tile.stage %bs[%s0] : (!b_ring, i32) -> !b
          %b0_t = tile.shared_transpose %b0 {permutation = array<i64: 1, 0>} : (!b) -> !b_t
          tile.fence dot
          %d0 = tile.dot_async %a0_rows, %b0_t : (!a_rows, !b_t) -> !sum
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
          %m_pair = tile.mul %row, %256 : i32
          %m_block = tile.add %m_pair, %rank_row : i32
          %m = tile.add %m_block, %my_row : i32
          %n = tile.mul %col, %256 : i32
          %s1, %p1 = tile.ring_next %s0, %p0 {stages = 4 : i64} : (i32, i32) -> (i32, i32)
          %last, %last_s, %s_end, %p_end = scf.for %k = %1 to %steps step %1 iter_args(%old = %d0, %before = %s0, %s = %s1, %p = %p1) -> (!sum, i32, i32, i32) : i32 {
            tile.mbarrier_wait %full[%s] %p : (!bars, i32, i32)
            %a_s = tile.stage %as[%s] : (!a_ring, i32) -> !a
            %a_rows = tile.shared_slice %a_s[%my_row, %0] : (!a, i32, i32) -> !a_rows
            %b_s = tile.stage %bs[%s] : (!b_ring, i32) -> !b
            %b_t = tile.shared_transpose %b_s {permutation = array<i64: 1, 0>} : (!b) -> !b_t
            tile.fence dot
            %d = tile.dot_async %a_rows, %b_t acc %old : (!a_rows, !b_t, !sum) -> !sum
            tile.dot_commit
            %new = tile.dot_wait 1 [%d] : (!sum) -> !sum
            tile.mbarrier_arrive %empty[%before] to %both : (!bars, i32, i32)
            %s_next, %p_next = tile.ring_next %s, %p {stages = 4 : i64} : (i32, i32) -> (i32, i32)
            scf.yield %new, %s, %s_next, %p_next : !sum, i32, i32, i32
          }
          %sum = tile.dot_wait 0 [%last] : (!sum) -> !acc
          tile.mbarrier_arrive %empty[%last_s] to %both : (!bars, i32, i32)

          // 64 columns at a time: wait until the subtile is free, fill it, send it
          %x0 = tile.slice %sum {offsets = array<i64: 0, 0>} : (!acc) -> !part
          %h0 = tile.cast %x0 : !part to !half
          tile.bulk_wait 1 {read}
          tile.block_barrier
          tile.write %slab0, %h0 : (!subtile, !half)
          tile.fence async_shared
          tile.block_barrier
          tile.tma_store %map_c[%m, %n] %slab0 : (!store, i32, i32, !subtile)
          tile.bulk_commit
          %x1 = tile.slice %sum {offsets = array<i64: 0, 64>} : (!acc) -> !part
          %h1 = tile.cast %x1 : !part to !half
          %n1 = tile.add %n, %64 : i32
          tile.bulk_wait 1 {read}
          tile.block_barrier
          tile.write %slab1, %h1 : (!subtile, !half)
          tile.fence async_shared
          tile.block_barrier
          tile.tma_store %map_c[%m, %n1] %slab1 : (!store, i32, i32, !subtile)
          tile.bulk_commit
          %x2 = tile.slice %sum {offsets = array<i64: 0, 128>} : (!acc) -> !part
          %h2 = tile.cast %x2 : !part to !half
          %n2 = tile.add %n, %128 : i32
          tile.bulk_wait 1 {read}
          tile.block_barrier
          tile.write %slab0, %h2 : (!subtile, !half)
          tile.fence async_shared
          tile.block_barrier
          tile.tma_store %map_c[%m, %n2] %slab0 : (!store, i32, i32, !subtile)
          tile.bulk_commit
          %x3 = tile.slice %sum {offsets = array<i64: 0, 192>} : (!acc) -> !part
          %h3 = tile.cast %x3 : !part to !half
          %n3 = tile.add %n, %192 : i32
          tile.bulk_wait 1 {read}
          tile.block_barrier
          tile.write %slab1, %h3 : (!subtile, !half)
          tile.fence async_shared
          tile.block_barrier
          tile.tma_store %map_c[%m, %n3] %slab1 : (!store, i32, i32, !subtile)
          tile.bulk_commit
          scf.yield %s_end, %p_end : i32, i32
        }
        tile.bulk_wait 0 {read}
      }
    }
    tile.return
  }
}
