// schedule-warpgroups: a map with panels, for boxes that begin between them
builtin.module {
  tile.kernel @kernel(%a2: !tile.array<?x?xf16, "shape 8 16 strides 16 =1 align 16">, %o4: !tile.array<?x?x?xf32>) {level = 0 : i64, argument_names = ["a2", "o4"]} {
    %0 = tile.constant 0 : i32
    %1 = tile.view %o4[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xf32>, i32) -> !tile.array<?x?xf32>
    %2 = tile.constant 0.000000e+00 : !tile.tile<64x8xf32>
    %4 = tile.constant 3 : i32
    %5 = tile.constant 1 : i32
    %6 = scf.for %k14 = %0 to %4 step %5 iter_args(%v15 = %2) -> (!tile.tile<64x8xf32>) : i32 {
      %7 = tile.constant 1.000000e+00 : !tile.tile<64x48xf16>
      %8 = tile.load %a2[%k14, %k14] {extents = array<i64: 8, 48>} : (!tile.array<?x?xf16, "shape 8 16 strides 16 =1 align 16">, i32, i32) -> !tile.tile<8x48xf16>
      %9 = tile.transpose %8 {permutation = array<i64: 1, 0>} : (!tile.tile<8x48xf16>) -> !tile.tile<48x8xf16>
      %10 = tile.dot %7, %9, %v15 {precision = "ieee"} : (!tile.tile<64x48xf16>, !tile.tile<48x8xf16>, !tile.tile<64x8xf32>) -> !tile.tile<64x8xf32>
      scf.yield %10 : !tile.tile<64x8xf32>
    }
    tile.store %1[%0, %0] %6 {extents = array<i64: 64, 8>} : (!tile.array<?x?xf32>, i32, i32, !tile.tile<64x8xf32>)
    tile.return
  }
}
