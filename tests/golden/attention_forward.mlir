// O = softmax(Q Kᵀ · scale) V for every head, all keys visible; bf16, arrays (B, S, H, 128), S a multiple of 128; lse (B, H, S), natural logarithms.
// Grid: (S / 128, H, B).
//
// A program has 128 rows of Q; two consumers of 4 warps have 64 each and take turns on the tensor cores (named barriers 1 and 2).  The programs of
// a block form one stream of K and V tiles of 128 keys, V one tile behind K.  In its turn a consumer issues the scores of tile n and the sum over
// tile n - 1; the softmax of n runs while the other has its turn.  The first scores of a program share the turn with the last sum of the one
// before, so that only the arithmetic of its end is exposed.  Both outputs of a program leave through its Q slot.
!array = !tile.array<?x?x?x?xbf16, "shape 1 128 1 =128 strides 8 8 8 =1 align 16">
!lse = !tile.array<?x?x?xf32, "shape 1 1 128 strides 1 1 =1 align 16">
!acc = !tile.tile<64x128xf32, "wgmma 64x128">
!pending = !tile.pending<!acc>
!probs = !tile.tile<64x128xbf16, "wgmma 64x128">
!rows = !tile.tile<64xf32, "64: 2:8@0 | 4:* 8:1@0 | 4:16@0">
!rows_1 = !tile.tile<64x1xf32, "64x1: 2:8@0 | 4:* 8:1@0 | 4:16@0">
// a row's columns as 16 x 4 x 2: every lane of a quad has two neighbours of every eight
!quads_2 = !tile.tile<64x16x4x2xf32, "64x16x4x2: 2:1@3 2:8@0 16:1@1 | 4:1@2 8:1@0 | 4:16@0">
!quads_1 = !tile.tile<64x16x4xf32, "64x16x4: 2:8@0 16:1@1 | 4:1@2 8:1@0 | 4:16@0">
!quads = !tile.tile<64x4xf32, "64x4: 2:8@0 | 4:1@1 8:1@0 | 4:16@0">
!q_ring = !tile.shared<4, 64x128xbf16, "64x128xb16 swizzle 128">
!q = !tile.shared<1, 64x128xbf16, "64x128xb16 swizzle 128">
!kv_ring = !tile.shared<2, 128x128xbf16, "128x128xb16 swizzle 128">
!kv = !tile.shared<1, 128x128xbf16, "128x128xb16 swizzle 128">
!k_t = !tile.shared<1, 128x128xbf16, "128x128xb16 swizzle 128 order 0x1">
!load = !tile.map<1x128x1x128xbf16, 128, panelled>
!box = !tile.map<1x64x1x128xbf16, 128, panelled>
!bars = !tile.barriers<2>
builtin.module {
  tile.kernel @attention_forward(%q: !array, %k: !array, %v: !array, %o: !array, %lse: !lse, %scale: f32)
      {warps = 8 : i64, level = 4 : i64, target = "sm_90a", persistent, shared_bytes = 196704 : i64, argument_names = ["q", "k", "v", "o", "lse", "scale"]} {
    %0 = tile.constant 0 : i32
    %1 = tile.constant 1 : i32
    %2 = tile.constant 2 : i32
    %64 = tile.constant 64 : i32
    %127 = tile.constant 127 : i32
    %128 = tile.constant 128 : i32
    %half = tile.constant 0.5 : f32
    %log2e = tile.constant 1.44269504 : f32
    %map_q = tile.tensor_map %q : (!array) -> !box
    %map_k = tile.tensor_map %k : (!array) -> !load
    %map_v = tile.tensor_map %v : (!array) -> !load
    %map_o = tile.tensor_map %o : (!array) -> !box
    %slots = tile.alloc 0 : !q_ring                               // two programs, 64 rows for each consumer
    %ks = tile.alloc 65536 : !kv_ring
    %vs = tile.alloc 131072 : !kv_ring
    %k_full = tile.mbarriers 196608 : !bars
    %k_empty = tile.mbarriers 196624 : !bars
    %v_full = tile.mbarriers 196640 : !bars
    %v_empty = tile.mbarriers 196656 : !bars
    %q_full = tile.mbarriers 196672 : !bars
    %q_empty = tile.mbarriers 196688 : !bars
    tile.mbarrier_init %k_full {count = 1 : i64} : (!bars)
    tile.mbarrier_init %k_empty {count = 2 : i64} : (!bars)       // both consumers
    tile.mbarrier_init %v_full {count = 1 : i64} : (!bars)
    tile.mbarrier_init %v_empty {count = 2 : i64} : (!bars)
    tile.mbarrier_init %q_full {count = 1 : i64} : (!bars)
    tile.mbarrier_init %q_empty {count = 2 : i64} : (!bars)
    tile.fence mbarrier_init
    %keys = tile.dim %k, 1 : (!array) -> i32
    %steps = tile.floordiv %keys, %128 : i32
    %blocks_m = tile.num_programs 0 : i32
    %heads = tile.num_programs 1 : i32
    %batches = tile.num_programs 2 : i32
    %lines = tile.mul %heads, %batches : i32
    %tiles = tile.mul %lines, %blocks_m : i32
    %blocks_m_f = tile.cast %blocks_m : i32 to f32
    %heads_f = tile.cast %heads : i32 to f32
    %block = tile.identity block : i32
    %blocks = tile.identity blocks : i32
    tile.block_barrier

    tile.roles {
      tile.role producer {warps = 4 : i64, copies = 1 : i64, registers = 24 : i64, single} {
      ^bb0(%who: i32):
        %last_row = tile.sub %keys, %128 : i32
        %k_e, %kp_e, %v_e, %vp_e, %q_e, %qp_e, %bat_e, %head_e = scf.for %tile = %block to %tiles step %blocks
            iter_args(%k0 = %0, %kp0 = %1, %v0 = %0, %vp0 = %1, %q0 = %0, %qp0 = %1, %bat0 = %0, %head0 = %0) -> (i32, i32, i32, i32, i32, i32, i32, i32) : i32 {
          %t_f = tile.cast %tile : i32 to f32
          %t_h = tile.add %t_f, %half : f32
          %line_f = tile.div %t_h, %blocks_m_f : f32
          %line = tile.cast %line_f : f32 to i32                          // batch * heads + head
          %line_start = tile.mul %line, %blocks_m : i32
          %in = tile.sub %tile, %line_start : i32
          %l_f = tile.cast %line : i32 to f32
          %l_h = tile.add %l_f, %half : f32
          %bat_f = tile.div %l_h, %heads_f : f32
          %bat = tile.cast %bat_f : f32 to i32
          %bat_start = tile.mul %bat, %heads : i32
          %head = tile.sub %line, %bat_start : i32
          %m = tile.mul %in, %128 : i32
          tile.mbarrier_wait %k_empty[%k0] %kp0 : (!bars, i32, i32)
          tile.mbarrier_expect %k_full[%k0] {bytes = 32768 : i64} : (!bars, i32)
          %k_to = tile.stage %ks[%k0] : (!kv_ring, i32) -> !kv
          tile.tma_load %map_k[%bat, %0, %head, %0] %k_to, %k_full[%k0] {hint = "evict_last"} : (!load, i32, i32, i32, i32, !kv, !bars, i32)
          %k1, %kp1 = tile.ring_next %k0, %kp0 {stages = 2 : i64} : (i32, i32) -> (i32, i32)
          %more = tile.ne %tile, %block : i32
          %v1, %vp1 = scf.if %more -> (i32, i32) {                         // the last V tile of the program before
            tile.mbarrier_wait %v_empty[%v0] %vp0 : (!bars, i32, i32)
            tile.mbarrier_expect %v_full[%v0] {bytes = 32768 : i64} : (!bars, i32)
            %v_to = tile.stage %vs[%v0] : (!kv_ring, i32) -> !kv
            tile.tma_load %map_v[%bat0, %last_row, %head0, %0] %v_to, %v_full[%v0] {hint = "evict_last"} : (!load, i32, i32, i32, i32, !kv, !bars, i32)
            %v_n, %vp_n = tile.ring_next %v0, %vp0 {stages = 2 : i64} : (i32, i32) -> (i32, i32)
            scf.yield %v_n, %vp_n : i32, i32
          } else {
            scf.yield %v0, %vp0 : i32, i32
          }
          tile.mbarrier_wait %q_empty[%q0] %qp0 : (!bars, i32, i32)
          tile.mbarrier_expect %q_full[%q0] {bytes = 32768 : i64} : (!bars, i32)
          %q0_2 = tile.mul %q0, %2 : i32
          %q0_3 = tile.add %q0_2, %1 : i32
          %upper = tile.stage %slots[%q0_2] : (!q_ring, i32) -> !q
          %lower = tile.stage %slots[%q0_3] : (!q_ring, i32) -> !q
          %m_low = tile.add %m, %64 : i32
          tile.tma_load %map_q[%bat, %m, %head, %0] %upper, %q_full[%q0] {hint = "evict_first"} : (!box, i32, i32, i32, i32, !q, !bars, i32)
          tile.tma_load %map_q[%bat, %m_low, %head, %0] %lower, %q_full[%q0] {hint = "evict_first"} : (!box, i32, i32, i32, i32, !q, !bars, i32)
          %q1, %qp1 = tile.ring_next %q0, %qp0 {stages = 2 : i64} : (i32, i32) -> (i32, i32)
          %k_z, %kp_z, %v_z, %vp_z = scf.for %row = %128 to %keys step %128 iter_args(%k2 = %k1, %kp2 = %kp1, %v2 = %v1, %vp2 = %vp1) -> (i32, i32, i32, i32) : i32 {
            tile.mbarrier_wait %k_empty[%k2] %kp2 : (!bars, i32, i32)
            tile.mbarrier_expect %k_full[%k2] {bytes = 32768 : i64} : (!bars, i32)
            %k_in = tile.stage %ks[%k2] : (!kv_ring, i32) -> !kv
            tile.tma_load %map_k[%bat, %row, %head, %0] %k_in, %k_full[%k2] {hint = "evict_last"} : (!load, i32, i32, i32, i32, !kv, !bars, i32)
            %k_n, %kp_n = tile.ring_next %k2, %kp2 {stages = 2 : i64} : (i32, i32) -> (i32, i32)
            %row_v = tile.sub %row, %128 : i32
            tile.mbarrier_wait %v_empty[%v2] %vp2 : (!bars, i32, i32)
            tile.mbarrier_expect %v_full[%v2] {bytes = 32768 : i64} : (!bars, i32)
            %v_in = tile.stage %vs[%v2] : (!kv_ring, i32) -> !kv
            tile.tma_load %map_v[%bat, %row_v, %head, %0] %v_in, %v_full[%v2] {hint = "evict_last"} : (!load, i32, i32, i32, i32, !kv, !bars, i32)
            %v_n, %vp_n = tile.ring_next %v2, %vp2 {stages = 2 : i64} : (i32, i32) -> (i32, i32)
            scf.yield %k_n, %kp_n, %v_n, %vp_n : i32, i32, i32, i32
          }
          scf.yield %k_z, %kp_z, %v_z, %vp_z, %q1, %qp1, %bat, %head : i32, i32, i32, i32, i32, i32, i32, i32
        }
        // nothing follows: one more arrival, without data, lets the consumers' look ahead pass
        tile.mbarrier_wait %k_empty[%k_e] %kp_e : (!bars, i32, i32)
        tile.mbarrier_arrive %k_full[%k_e] : (!bars, i32)
        tile.mbarrier_wait %v_empty[%v_e] %vp_e : (!bars, i32, i32)
        tile.mbarrier_expect %v_full[%v_e] {bytes = 32768 : i64} : (!bars, i32)
        %v_to = tile.stage %vs[%v_e] : (!kv_ring, i32) -> !kv
        tile.tma_load %map_v[%bat_e, %last_row, %head_e, %0] %v_to, %v_full[%v_e] {hint = "evict_last"} : (!load, i32, i32, i32, i32, !kv, !bars, i32)
        %v_x, %vp_x = tile.ring_next %v_e, %vp_e {stages = 2 : i64} : (i32, i32) -> (i32, i32)
      }
      tile.role consumer {warps = 4 : i64, copies = 2 : i64, registers = 240 : i64} {
      ^bb0(%who: i32):
        %my_row = tile.mul %who, %64 : i32
        %my_turn = tile.add %who, %1 : i32
        %its_turn = tile.sub %2, %who : i32
        %second = tile.eq %who, %1 : i32
        scf.if %second {                                                 // the first turn is the first consumer's
          tile.barrier_arrive %its_turn {threads = 256 : i64} : (i32)
        }
        %c = tile.mul %scale, %log2e : f32
        %c_minus = tile.neg %c : f32
        %c_n = tile.splat %c : (f32) -> !acc
        %c_rows = tile.splat %c : (f32) -> !rows
        %c_neg = tile.splat %c_minus : (f32) -> !rows
        %one = tile.constant 1.0 : !rows
        %ln2 = tile.constant 0.693147181 : !rows
        %stop = tile.sub %tiles, %blocks : i32                          // where a program has no successor here
        %keep_last = tile.ne %steps, %1 : i32
        %o0 = tile.constant 0.0 : !acc

        // the first scores
        tile.mbarrier_wait %q_full[%0] %0 : (!bars, i32, i32)
        %slot0 = tile.stage %slots[%who] : (!q_ring, i32) -> !q
        tile.mbarrier_wait %k_full[%0] %0 : (!bars, i32, i32)
        %kt_first = tile.stage %ks[%0] : (!kv_ring, i32) -> !kv
        %kt_t_first = tile.shared_transpose %kt_first {permutation = array<i64: 1, 0>} : (!kv) -> !k_t
        tile.fence dot
        %s0_p = tile.dot_async %slot0, %kt_t_first : (!q, !k_t) -> !pending
        tile.dot_commit
        %s0 = tile.dot_wait 0 [%s0_p] : (!pending) -> !acc
        tile.mbarrier_arrive %k_empty[%0] : (!bars, i32)
        %top0 = tile.reduce max [%s0] {axis = 1 : i64} : (!acc) -> !rows
        %k0, %kp0 = tile.ring_next %0, %0 {stages = 2 : i64} : (i32, i32) -> (i32, i32)
        %ready_first = tile.mbarrier_test %k_full[%k0] %kp0 : (!bars, i32, i32) -> i1
        %low_first = tile.mul %top0, %c_neg : !rows
        %low_1_first = tile.reshape %low_first : (!rows) -> !rows_1
        %low_n_first = tile.broadcast %low_1_first : (!rows_1) -> !acc
        %x_first = tile.fma %s0, %c_n, %low_n_first : !acc
        %e_first = tile.exp2 %x_first : !acc
        %p0 = tile.cast %e_first : !acc to !probs
        %e_4_first = tile.reshape %e_first : (!acc) -> !quads_2
        %e_3_first = tile.reduce sum [%e_4_first] {axis = 3 : i64} : (!quads_2) -> !quads_1
        %l0 = tile.reduce sum [%e_3_first] {axis = 1 : i64} : (!quads_1) -> !quads
        tile.mbarrier_wait %k_full[%k0] %kp0 unless %ready_first : (!bars, i32, i32, i1)
        %o_a, %p_a, %top_a, %l_a, %k_a, %kp_a, %v_a, %vp_a, %q_a, %qp_a = scf.for %tile = %block to %stop step %blocks
            iter_args(%o_0 = %o0, %p_0 = %p0, %top_0 = %top0, %l_0 = %l0, %k_0 = %k0, %kp_0 = %kp0, %v_0 = %0, %vp_0 = %0, %q_0 = %0, %qp_0 = %0)
            -> (!acc, !probs, !rows, !quads, i32, i32, i32, i32, i32, i32) : i32 {
          %slot_2 = tile.mul %q_0, %2 : i32
          %slot_w = tile.add %slot_2, %who : i32
          %slot = tile.stage %slots[%slot_w] : (!q_ring, i32) -> !q
          %o_1, %p_1, %top_1, %l_1, %k_1, %kp_1, %v_1, %vp_1 = scf.for %i = %1 to %steps step %1
              iter_args(%sum = %o_0, %prob = %p_0, %top = %top_0, %part = %l_0, %ki = %k_0, %kpi = %kp_0, %vi = %v_0, %vpi = %vp_0) -> (!acc, !probs, !rows, !quads, i32, i32, i32, i32) : i32 {
            tile.barrier %my_turn {threads = 256 : i64} : (i32)
            %kt = tile.stage %ks[%ki] : (!kv_ring, i32) -> !kv
            %kt_t = tile.shared_transpose %kt {permutation = array<i64: 1, 0>} : (!kv) -> !k_t
            tile.fence dot
            %s_p = tile.dot_async %slot, %kt_t : (!q, !k_t) -> !pending
            tile.dot_commit
            %keep = tile.ne %i, %1 : i32                                    // the first sum of a block starts from nothing
            tile.mbarrier_wait %v_full[%vi] %vpi : (!bars, i32, i32)
            %vt = tile.stage %vs[%vi] : (!kv_ring, i32) -> !kv
            tile.fence dot
            %o_p = tile.dot_async %prob, %vt acc %sum keep %keep : (!probs, !kv, !acc, i1) -> !pending
            tile.dot_commit
            tile.barrier_arrive %its_turn {threads = 256 : i64} : (i32)
            %s, %o_q = tile.dot_wait 1 [%s_p, %o_p] : (!pending, !pending) -> (!acc, !pending)
            tile.mbarrier_arrive %k_empty[%ki] : (!bars, i32)
            %found = tile.reduce max [%s] {axis = 1 : i64} : (!acc) -> !rows
            %new = tile.max %top, %found : !rows
            %d = tile.sub %top, %new : !rows
            %d_c = tile.mul %d, %c_rows : !rows
            %shrink = tile.exp2 %d_c : !rows
            %shrink_1 = tile.reshape %shrink : (!rows) -> !rows_1
            %shrink_4 = tile.broadcast %shrink_1 : (!rows_1) -> !quads
            %l_old = tile.mul %part, %shrink_4 : !quads
            %o_r = tile.dot_wait 0 [%o_q] : (!pending) -> !acc
            tile.mbarrier_arrive %v_empty[%vi] : (!bars, i32)
            %k_n, %kp_n = tile.ring_next %ki, %kpi {stages = 2 : i64} : (i32, i32) -> (i32, i32)
            %ready = tile.mbarrier_test %k_full[%k_n] %kp_n : (!bars, i32, i32) -> i1
            %low = tile.mul %new, %c_neg : !rows
            %low_1 = tile.reshape %low : (!rows) -> !rows_1
            %low_n = tile.broadcast %low_1 : (!rows_1) -> !acc
            %x = tile.fma %s, %c_n, %low_n : !acc
            %e = tile.exp2 %x : !acc
            %p_n = tile.cast %e : !acc to !probs
            %e_4 = tile.reshape %e : (!acc) -> !quads_2
            %e_3 = tile.reduce sum [%e_4] {axis = 3 : i64} : (!quads_2) -> !quads_1
            %l_e = tile.reduce sum [%e_3] {axis = 1 : i64} : (!quads_1) -> !quads
            %l_n = tile.add %l_old, %l_e : !quads
            %shrink_n = tile.broadcast %shrink_1 : (!rows_1) -> !acc
            %o_n = tile.mul %o_r, %shrink_n : !acc
            tile.mbarrier_wait %k_full[%k_n] %kp_n unless %ready : (!bars, i32, i32, i1)
            scf.yield %o_n, %p_n, %new, %l_n, %k_n, %kp_n, %ki, %kpi : !acc, !probs, !rows, !quads, i32, i32, i32, i32
          }

          // the last sum of this program and the first scores of the next
          %q_1, %qp_1 = tile.ring_next %q_0, %qp_0 {stages = 2 : i64} : (i32, i32) -> (i32, i32)
          %slot_n_2 = tile.mul %q_1, %2 : i32
          %slot_n_w = tile.add %slot_n_2, %who : i32
          %slot_n = tile.stage %slots[%slot_n_w] : (!q_ring, i32) -> !q
          tile.mbarrier_wait %q_full[%q_1] %qp_1 : (!bars, i32, i32)
          tile.barrier %my_turn {threads = 256 : i64} : (i32)
          %kt = tile.stage %ks[%k_1] : (!kv_ring, i32) -> !kv
          %kt_t = tile.shared_transpose %kt {permutation = array<i64: 1, 0>} : (!kv) -> !k_t
          tile.fence dot
          %s_p = tile.dot_async %slot_n, %kt_t : (!q, !k_t) -> !pending
          tile.dot_commit
          tile.mbarrier_wait %v_full[%v_1] %vp_1 : (!bars, i32, i32)
          %vt = tile.stage %vs[%v_1] : (!kv_ring, i32) -> !kv
          tile.fence dot
          %o_p = tile.dot_async %p_1, %vt acc %o_1 keep %keep_last : (!probs, !kv, !acc, i1) -> !pending
          tile.dot_commit
          tile.barrier_arrive %its_turn {threads = 256 : i64} : (i32)
          %t_f = tile.cast %tile : i32 to f32
          %t_h = tile.add %t_f, %half : f32
          %line_f = tile.div %t_h, %blocks_m_f : f32
          %line = tile.cast %line_f : f32 to i32                          // batch * heads + head
          %line_start = tile.mul %line, %blocks_m : i32
          %in = tile.sub %tile, %line_start : i32
          %l_f = tile.cast %line : i32 to f32
          %l_h = tile.add %l_f, %half : f32
          %bat_f = tile.div %l_h, %heads_f : f32
          %bat = tile.cast %bat_f : f32 to i32
          %bat_start = tile.mul %bat, %heads : i32
          %head = tile.sub %line, %bat_start : i32
          %m = tile.mul %in, %128 : i32
          %s, %o_q = tile.dot_wait 1 [%s_p, %o_p] : (!pending, !pending) -> (!acc, !pending)
          tile.mbarrier_arrive %k_empty[%k_1] : (!bars, i32)
          %o_r = tile.dot_wait 0 [%o_q] : (!pending) -> !acc
          tile.mbarrier_arrive %v_empty[%v_1] : (!bars, i32)
          %total = tile.reduce sum [%l_1] {axis = 1 : i64} : (!quads) -> !rows
          %inverse = tile.div %one, %total : !rows
          %inverse_1 = tile.reshape %inverse : (!rows) -> !rows_1
          %inverse_n = tile.broadcast %inverse_1 : (!rows_1) -> !acc
          %o_2 = tile.mul %o_r, %inverse_n : !acc
          %o_half = tile.cast %o_2 : !acc to !probs
          tile.write %slot, %o_half : (!q, !probs)
          tile.fence async_shared
          tile.block_barrier
          %my_m = tile.add %m, %my_row : i32
          tile.tma_store %map_o[%bat, %my_m, %head, %0] %slot : (!box, i32, i32, i32, i32, !q)
          tile.bulk_commit
          %bits = tile.log2 %total : !rows
          %lse_2 = tile.fma %top_1, %c_rows, %bits : !rows
          %lse_e = tile.mul %lse_2, %ln2 : !rows
          tile.store %lse[%bat, %head, %my_m] %lse_e {extents = array<i64: -1, -1, 64>} : (!lse, i32, i32, i32, !rows)
          %top_2 = tile.reduce max [%s] {axis = 1 : i64} : (!acc) -> !rows
          %k_2, %kp_2 = tile.ring_next %k_1, %kp_1 {stages = 2 : i64} : (i32, i32) -> (i32, i32)
          %ready = tile.mbarrier_test %k_full[%k_2] %kp_2 : (!bars, i32, i32) -> i1
          %low = tile.mul %top_2, %c_neg : !rows
          %low_1 = tile.reshape %low : (!rows) -> !rows_1
          %low_n = tile.broadcast %low_1 : (!rows_1) -> !acc
          %x = tile.fma %s, %c_n, %low_n : !acc
          %e = tile.exp2 %x : !acc
          %p_2 = tile.cast %e : !acc to !probs
          %e_4 = tile.reshape %e : (!acc) -> !quads_2
          %e_3 = tile.reduce sum [%e_4] {axis = 3 : i64} : (!quads_2) -> !quads_1
          %l_2 = tile.reduce sum [%e_3] {axis = 1 : i64} : (!quads_1) -> !quads
          tile.bulk_wait 0 {read}                                          // the output has left its slot
          tile.mbarrier_arrive %q_empty[%q_0] : (!bars, i32)
          tile.mbarrier_wait %k_full[%k_2] %kp_2 unless %ready : (!bars, i32, i32, i1)
          scf.yield %o_2, %p_2, %top_2, %l_2, %k_2, %kp_2, %k_1, %kp_1, %q_1, %qp_1 : !acc, !probs, !rows, !quads, i32, i32, i32, i32, i32, i32
        }

        // the last program
        %slot_2 = tile.mul %q_a, %2 : i32
        %slot_w = tile.add %slot_2, %who : i32
        %slot = tile.stage %slots[%slot_w] : (!q_ring, i32) -> !q
        %o_z, %p_z, %top_z, %l_z, %k_z, %kp_z, %v_z, %vp_z = scf.for %i = %1 to %steps step %1
            iter_args(%sum = %o_a, %prob = %p_a, %top = %top_a, %part = %l_a, %ki = %k_a, %kpi = %kp_a, %vi = %v_a, %vpi = %vp_a) -> (!acc, !probs, !rows, !quads, i32, i32, i32, i32) : i32 {
          tile.barrier %my_turn {threads = 256 : i64} : (i32)
          %kt = tile.stage %ks[%ki] : (!kv_ring, i32) -> !kv
          %kt_t = tile.shared_transpose %kt {permutation = array<i64: 1, 0>} : (!kv) -> !k_t
          tile.fence dot
          %s_p = tile.dot_async %slot, %kt_t : (!q, !k_t) -> !pending
          tile.dot_commit
          %keep = tile.ne %i, %1 : i32                                    // the first sum of a block starts from nothing
          tile.mbarrier_wait %v_full[%vi] %vpi : (!bars, i32, i32)
          %vt = tile.stage %vs[%vi] : (!kv_ring, i32) -> !kv
          tile.fence dot
          %o_p = tile.dot_async %prob, %vt acc %sum keep %keep : (!probs, !kv, !acc, i1) -> !pending
          tile.dot_commit
          tile.barrier_arrive %its_turn {threads = 256 : i64} : (i32)
          %s, %o_q = tile.dot_wait 1 [%s_p, %o_p] : (!pending, !pending) -> (!acc, !pending)
          tile.mbarrier_arrive %k_empty[%ki] : (!bars, i32)
          %found = tile.reduce max [%s] {axis = 1 : i64} : (!acc) -> !rows
          %new = tile.max %top, %found : !rows
          %d = tile.sub %top, %new : !rows
          %d_c = tile.mul %d, %c_rows : !rows
          %shrink = tile.exp2 %d_c : !rows
          %shrink_1 = tile.reshape %shrink : (!rows) -> !rows_1
          %shrink_4 = tile.broadcast %shrink_1 : (!rows_1) -> !quads
          %l_old = tile.mul %part, %shrink_4 : !quads
          %o_r = tile.dot_wait 0 [%o_q] : (!pending) -> !acc
          tile.mbarrier_arrive %v_empty[%vi] : (!bars, i32)
          %k_n, %kp_n = tile.ring_next %ki, %kpi {stages = 2 : i64} : (i32, i32) -> (i32, i32)
          %ready = tile.mbarrier_test %k_full[%k_n] %kp_n : (!bars, i32, i32) -> i1
          %low = tile.mul %new, %c_neg : !rows
          %low_1 = tile.reshape %low : (!rows) -> !rows_1
          %low_n = tile.broadcast %low_1 : (!rows_1) -> !acc
          %x = tile.fma %s, %c_n, %low_n : !acc
          %e = tile.exp2 %x : !acc
          %p_n = tile.cast %e : !acc to !probs
          %e_4 = tile.reshape %e : (!acc) -> !quads_2
          %e_3 = tile.reduce sum [%e_4] {axis = 3 : i64} : (!quads_2) -> !quads_1
          %l_e = tile.reduce sum [%e_3] {axis = 1 : i64} : (!quads_1) -> !quads
          %l_n = tile.add %l_old, %l_e : !quads
          %shrink_n = tile.broadcast %shrink_1 : (!rows_1) -> !acc
          %o_n = tile.mul %o_r, %shrink_n : !acc
          tile.mbarrier_wait %k_full[%k_n] %kp_n unless %ready : (!bars, i32, i32, i1)
          scf.yield %o_n, %p_n, %new, %l_n, %k_n, %kp_n, %ki, %kpi : !acc, !probs, !rows, !quads, i32, i32, i32, i32
        }
        tile.barrier %my_turn {threads = 256 : i64} : (i32)
        tile.mbarrier_wait %v_full[%v_z] %vp_z : (!bars, i32, i32)
        %vt = tile.stage %vs[%v_z] : (!kv_ring, i32) -> !kv
        tile.fence dot
        %o_p = tile.dot_async %p_z, %vt acc %o_z keep %keep_last : (!probs, !kv, !acc, i1) -> !pending
        tile.dot_commit
        tile.barrier_arrive %its_turn {threads = 256 : i64} : (i32)
        %behind = tile.sub %tiles, %block : i32                          // which is block + blocks * floor((tiles - block - 1) / blocks)
        %behind_1 = tile.sub %behind, %1 : i32
        %rounds = tile.floordiv %behind_1, %blocks : i32
        %ahead = tile.mul %rounds, %blocks : i32
        %end = tile.add %block, %ahead : i32
        %t_f = tile.cast %end : i32 to f32
        %t_h = tile.add %t_f, %half : f32
        %line_f = tile.div %t_h, %blocks_m_f : f32
        %line = tile.cast %line_f : f32 to i32                          // batch * heads + head
        %line_start = tile.mul %line, %blocks_m : i32
        %in = tile.sub %end, %line_start : i32
        %l_f = tile.cast %line : i32 to f32
        %l_h = tile.add %l_f, %half : f32
        %bat_f = tile.div %l_h, %heads_f : f32
        %bat = tile.cast %bat_f : f32 to i32
        %bat_start = tile.mul %bat, %heads : i32
        %head = tile.sub %line, %bat_start : i32
        %m = tile.mul %in, %128 : i32
        %o_r = tile.dot_wait 0 [%o_p] : (!pending) -> !acc
        tile.mbarrier_arrive %v_empty[%v_z] : (!bars, i32)
        %total = tile.reduce sum [%l_z] {axis = 1 : i64} : (!quads) -> !rows
        %inverse = tile.div %one, %total : !rows
        %inverse_1 = tile.reshape %inverse : (!rows) -> !rows_1
        %inverse_n = tile.broadcast %inverse_1 : (!rows_1) -> !acc
        %o_y = tile.mul %o_r, %inverse_n : !acc
        %o_half = tile.cast %o_y : !acc to !probs
        tile.write %slot, %o_half : (!q, !probs)
        tile.fence async_shared
        tile.block_barrier
        %my_m = tile.add %m, %my_row : i32
        tile.tma_store %map_o[%bat, %my_m, %head, %0] %slot : (!box, i32, i32, i32, i32, !q)
        tile.bulk_commit
        %bits = tile.log2 %total : !rows
        %lse_2 = tile.fma %top_z, %c_rows, %bits : !rows
        %lse_e = tile.mul %lse_2, %ln2 : !rows
        tile.store %lse[%bat, %head, %my_m] %lse_e {extents = array<i64: -1, -1, 64>} : (!lse, i32, i32, i32, !rows)
        tile.bulk_wait 0 {read}
      }
    }
    tile.return
  }
}
