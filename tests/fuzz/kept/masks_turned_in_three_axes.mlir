// a mask of three axes that crosses shared memory in 8-bit words: ValueError in fragments.py; warps 8 (seed 53700)
builtin.module {
  tile.kernel @kernel(%a5: !tile.array<?x?x?xf32>, %o9: !tile.array<?x?x?x?xf32>, %n0: i32, %n1: i32) {level = 0 : i64, argument_names = ["a5", "o9", "n0", "n1"]} {
    %0 = tile.program_id 0 : i32
    %1 = tile.view %o9[%0] {kinds = ["index", "all", "all", "all"]} : (!tile.array<?x?x?x?xf32>, i32) -> !tile.array<?x?x?xf32, "shape 4 64 64 strides 128 64 =1 align 16">
    %2 = tile.load %a5[%n1, %n1, %n0] {extents = array<i64: 1, 64, 64>} : (!tile.array<?x?x?xf32>, i32, i32, i32) -> !tile.tile<1x64x64xf32>
    %3 = tile.transpose %2 {permutation = array<i64: 0, 2, 1>} : (!tile.tile<1x64x64xf32>) -> !tile.tile<1x64x64xf32>
    %4 = tile.constant 0.000000e+00 : !tile.tile<1x64x64xf32>
    %5 = tile.gt %2, %4 : !tile.tile<1x64x64xf32>
    %6 = tile.constant 0 : i32
    %7 = tile.constant 0 : i32
    tile.store %1[%0, %6, %7] %3 mask %5 {extents = array<i64: 1, 64, 64>} : (!tile.array<?x?x?xf32, "shape 4 64 64 strides 128 64 =1 align 16">, i32, i32, i32, !tile.tile<1x64x64xf32>, !tile.tile<1x64x64xi1>)
    tile.return
  }
}
