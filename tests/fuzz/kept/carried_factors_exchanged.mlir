// a loop that hands on one carried factor as another (warps 8; seed 397 of roles)
builtin.module {
  tile.kernel @kernel(%o5: !tile.array<?x?x?xf32>, %n0: i32) {level = 0 : i64, argument_names = ["o5", "n0"], nonnegative = array<i64: 6, 7>} {
    %0 = tile.constant 0 : i32
    %1 = tile.view %o5[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xf32>, i32) -> !tile.array<?x?xf32>
    %2 = tile.constant 0.000000e+00 : !tile.tile<128x8xf32>
    %3 = tile.constant 1.000000e+00 : !tile.tile<128x16xf16>
    %4 = tile.constant 1.000000e+00 : !tile.tile<128x16xf16>
    %5 = tile.constant 0 : i32
    %6 = tile.constant 1 : i32
    %7, %8, %9 = scf.for %k1 = %5 to %n0 step %6 iter_args(%v2 = %2, %v4 = %3, %v6 = %4) -> (!tile.tile<128x8xf32>, !tile.tile<128x16xf16>, !tile.tile<128x16xf16>) : i32 {
      %10 = tile.constant 1.000000e+00 : !tile.tile<16x8xf16>
      %11 = tile.dot %v4, %10, %v2 {precision = "ieee"} : (!tile.tile<128x16xf16>, !tile.tile<16x8xf16>, !tile.tile<128x8xf32>) -> !tile.tile<128x8xf32>
      scf.yield %11, %v6, %v4 : !tile.tile<128x8xf32>, !tile.tile<128x16xf16>, !tile.tile<128x16xf16>
    }
    %12 = tile.constant 0 : i32
    tile.store %1[%12, %0] %7 {extents = array<i64: 128, 8>} : (!tile.array<?x?xf32>, i32, i32, !tile.tile<128x8xf32>)
    tile.return
  }
}
