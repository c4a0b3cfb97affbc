// parts of a dot's sum joined by registers in the layout of another dot of their group, which has other instructions (seed 1713)
// sm_89 warps 8 stages 1: emit: LayoutError: all but the last part must be multiples of 32 along axis 0 to be joined by registers
builtin.module {
  tile.kernel @kernel(%o11: !tile.array<?x?x?xf32>) {level = 0 : i64, argument_names = ["o11"]} {
    %0 = tile.program_id 0 : i32
    %1 = tile.view %o11[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xf32>, i32) -> !tile.array<?x?xf32>
    %2 = tile.constant 0 : !tile.tile<1x1xi8>
    %3 = tile.constant 0 : !tile.tile<1x16xi8>
    %4 = tile.constant 0 : !tile.tile<1x16xi32>
    %5 = tile.dot %2, %3, %4 {precision = "ieee"} : (!tile.tile<1x1xi8>, !tile.tile<1x16xi8>, !tile.tile<1x16xi32>) -> !tile.tile<1x16xi32>
    %6 = tile.constant 1.000000e+00 : !tile.tile<1x16xf16>
    %7 = tile.constant 1.000000e+00 : !tile.tile<16x16xf16>
    %8 = tile.cast %5 : !tile.tile<1x16xi32> to !tile.tile<1x16xf32>
    %9 = tile.dot %6, %7, %8 {precision = "ieee"} : (!tile.tile<1x16xf16>, !tile.tile<16x16xf16>, !tile.tile<1x16xf32>) -> !tile.tile<1x16xf32>
    %10 = tile.concat[%9, %9] {axis = 0 : i64} : (!tile.tile<1x16xf32>, !tile.tile<1x16xf32>) -> !tile.tile<2x16xf32>
    %11 = tile.constant 0 : i32
    %12 = tile.constant 0 : i32
    tile.store %1[%11, %12] %10 {extents = array<i64: 2, 16>} : (!tile.array<?x?xf32>, i32, i32, !tile.tile<2x16xf32>)
    tile.return
  }
}
