// a loop that stores parts of a dot's result also carries what stays whole (seed 60000634)
// sm_80 warps 1 stages 2: fit-results: ValueError: Attempting to delete SSA value that still has uses
builtin.module {
  tile.kernel @kernel(%o7: !tile.array<?x?x?xf32>, %o9: !tile.array<?x?x?xf32>, %n0: i32, %n1: i32) {level = 0 : i64, argument_names = ["o7", "o9", "n0", "n1"]} {
    %0 = tile.constant 0 : i32
    %1 = tile.view %o7[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xf32>, i32) -> !tile.array<?x?xf32>
    %2 = tile.view %o9[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xf32>, i32) -> !tile.array<?x?xf32>
    %v33 = tile.constant 0.000000e+00 : !tile.tile<45x45xf32>
    %3 = tile.constant 1.000000e+00 : !tile.tile<1x45xf16>
    %4 = tile.constant 1.000000e+00 : !tile.tile<45x1xf16>
    %5 = tile.dot %4, %3, %v33 {precision = "ieee"} : (!tile.tile<45x1xf16>, !tile.tile<1x45xf16>, !tile.tile<45x45xf32>) -> !tile.tile<45x45xf32>
    %6 = tile.constant 0.000000e+00 : !tile.tile<45x1xf32>
    %7 = tile.constant 0 : i32
    %8 = tile.constant 1 : i32
    %9 = scf.for %k37 = %7 to %n0 step %8 iter_args(%v38 = %6) -> (!tile.tile<45x1xf32>) : i32 {
      %10 = tile.constant 0 : i32
      %11 = tile.constant 0 : i32
      tile.store %1[%10, %11] %5 {extents = array<i64: 45, 45>} : (!tile.array<?x?xf32>, i32, i32, !tile.tile<45x45xf32>)
      %12 = tile.constant 1.000000e+00 : !tile.tile<45x1xf32>
      scf.yield %12 : !tile.tile<45x1xf32>
    }
    %13 = tile.constant 0 : i32
    tile.store %2[%n1, %13] %9 {extents = array<i64: 45, 1>} : (!tile.array<?x?xf32>, i32, i32, !tile.tile<45x1xf32>)
    tile.return
  }
}
