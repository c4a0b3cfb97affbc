// one value is a dot's left factor in parts and its right factor whole (seed 20005547)
// sm_89 warps 1 stages 4: fit-results: VerifyError: after fit-results: 'tile.dot' of [16, 16] and [16, 16] does not give [16, 48]
// grid (1,), {'n0': 2, 'n1': 3}
builtin.module {
  tile.kernel @kernel(%a5: !tile.array<?x?xbf16>, %o7: !tile.array<?x?x?xf32>, %o9: !tile.array<?x?x?xf32>, %n1: i32) {level = 0 : i64, argument_names = ["a5", "o7", "o9", "n1"]} {
    %0 = tile.program_id 0 : i32
    %1 = tile.view %o7[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xf32>, i32) -> !tile.array<?x?xf32>
    %2 = tile.view %o9[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xf32>, i32) -> !tile.array<?x?xf32>
    %3 = tile.load %a5[%n1, %0] {extents = array<i64: 15, 42>} : (!tile.array<?x?xbf16>, i32, i32) -> !tile.tile<15x42xbf16>
    %4 = tile.transpose %3 {permutation = array<i64: 1, 0>} : (!tile.tile<15x42xbf16>) -> !tile.tile<42x15xbf16>
    %5 = tile.constant 0.000000e+00 : !tile.tile<42x42xf32>
    %6 = tile.dot %4, %3, %5 {precision = "ieee"} : (!tile.tile<42x15xbf16>, !tile.tile<15x42xbf16>, !tile.tile<42x42xf32>) -> !tile.tile<42x42xf32>
    %v41 = tile.constant 0.000000e+00 : !tile.tile<15x15xf32>
    %7 = tile.constant 1.000000e+00 : !tile.tile<15x15xf32>
    %8 = tile.constant 1.000000e+00 : !tile.tile<15x15xf32>
    %9 = tile.constant 0.000000e+00 : !tile.tile<15x15xf32>
    %10 = tile.dot %7, %8, %9 {precision = "ieee"} : (!tile.tile<15x15xf32>, !tile.tile<15x15xf32>, !tile.tile<15x15xf32>) -> !tile.tile<15x15xf32>
    %11 = tile.add %v41, %10 : !tile.tile<15x15xf32>
    %12 = tile.constant 0 : i32
    tile.store %1[%0, %12] %6 {extents = array<i64: 42, 42>} : (!tile.array<?x?xf32>, i32, i32, !tile.tile<42x42xf32>)
    %13 = tile.constant 0 : i32
    tile.store %2[%13, %n1] %11 {extents = array<i64: 15, 15>} : (!tile.array<?x?xf32>, i32, i32, !tile.tile<15x15xf32>)
    tile.return
  }
}
