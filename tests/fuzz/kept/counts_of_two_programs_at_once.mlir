// Two consumers, each at a program of its own, counted into the same shared memory.
builtin.module {
  tile.kernel @kernel(%a4: !tile.array<?x?xf16, "shape 1 16 strides 16 =1 align 16">, %o9: !tile.array<?x?xi32>, %o10: !tile.array<?x?x?xf32>, %n0: i32) {level = 0 : i64, argument_names = ["a4", "o9", "o10", "n0"]} {
    %0 = tile.program_id 0 : i32
    %1 = tile.view %o9[%0] {kinds = ["index", "all"]} : (!tile.array<?x?xi32>, i32) -> !tile.array<?xi32>
    %2 = tile.view %o10[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xf32>, i32) -> !tile.array<?x?xf32>
    %3 = tile.constant 0 : !tile.tile<1xi8>
    %4 = tile.histogram %3 : (!tile.tile<1xi8>) -> !tile.tile<1xi32>
    %5 = tile.constant 0.000000e+00 : !tile.tile<64x64xf32>
    %6 = tile.constant 0 : i32
    %7 = tile.constant 1 : i32
    %8 = scf.for %k30 = %6 to %n0 step %7 iter_args(%v31 = %5) -> (!tile.tile<64x64xf32>) : i32 {
      %9 = tile.constant 0 : i32
      %10 = tile.load %a4[%9, %k30] {extents = array<i64: 64, 48>} : (!tile.array<?x?xf16, "shape 1 16 strides 16 =1 align 16">, i32, i32) -> !tile.tile<64x48xf16>
      %11 = tile.constant 0 : i32
      %12 = tile.load %a4[%k30, %11] {extents = array<i64: 48, 64>} : (!tile.array<?x?xf16, "shape 1 16 strides 16 =1 align 16">, i32, i32) -> !tile.tile<48x64xf16>
      %13 = tile.dot %10, %12, %v31 {precision = "ieee"} : (!tile.tile<64x48xf16>, !tile.tile<48x64xf16>, !tile.tile<64x64xf32>) -> !tile.tile<64x64xf32>
      scf.yield %13 : !tile.tile<64x64xf32>
    }
    %14 = tile.constant 0 : i32
    tile.store %1[%14] %4 {extents = array<i64: 1>} : (!tile.array<?xi32>, i32, !tile.tile<1xi32>)
    %15 = tile.constant 0 : i32
    %16 = tile.constant 0 : i32
    tile.store %2[%15, %16] %8 {extents = array<i64: 64, 64>} : (!tile.array<?x?xf32>, i32, i32, !tile.tile<64x64xf32>)
    tile.return
  }
}
