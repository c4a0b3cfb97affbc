// a ring that stands behind what the consumers do before their loop belongs to all roles (seed 20002256)
// sm_90a warps 4 stages 2: schedule-warpgroups: VerifyError: after schedule-warpgroups: <kernel 20002256>:19:15: 'tile.stage': operand 0 (ring) is used before, or outside the region of, its definition
// grid (3, 2), {'n0': 4, 'n1': 5}
builtin.module {
  tile.kernel @kernel(%a2: !tile.array<?x?xbf16, "shape =1 16 strides 16 =1 align 16">, %o3: !tile.array<?x?x?xi32>, %o5: !tile.array<?x?x?xf32>) {level = 0 : i64, argument_names = ["a2", "o3", "o5"]} {
    %0 = tile.constant 0 : i32
    %1 = tile.view %o3[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xi32>, i32) -> !tile.array<?x?xi32, "shape =1 16 strides 16 =1 align 16">
    %2 = tile.view %o5[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xf32>, i32) -> !tile.array<?x?xf32>
    %3 = tile.constant 4.000000e+00 : !tile.tile<64x1xf32>
    %4 = tile.reduce argmax[%3] {axis = 0 : i64} : (!tile.tile<64x1xf32>) -> !tile.tile<1xi32>
    %5 = tile.reshape %4 : (!tile.tile<1xi32>) -> !tile.tile<1x1xi32>
    %6 = tile.constant 0.000000e+00 : !tile.tile<64x64xf32>
    %7 = tile.constant 0 : i32
    %8 = tile.constant 11 : i32
    %9 = tile.constant 1 : i32
    %10 = scf.for %k6 = %7 to %8 step %9 iter_args(%v7 = %6) -> (!tile.tile<64x64xf32>) : i32 {
      %11 = tile.load %a2[%0, %k6] {extents = array<i64: 64, 16>} : (!tile.array<?x?xbf16, "shape =1 16 strides 16 =1 align 16">, i32, i32) -> !tile.tile<64x16xbf16>
      %12 = tile.constant 1.000000e+00 : !tile.tile<16x64xbf16>
      %13 = tile.dot %11, %12, %v7 {precision = "ieee"} : (!tile.tile<64x16xbf16>, !tile.tile<16x64xbf16>, !tile.tile<64x64xf32>) -> !tile.tile<64x64xf32>
      scf.yield %13 : !tile.tile<64x64xf32>
    }
    %14 = tile.constant 0 : i32
    %15 = tile.constant 0 : i32
    tile.store %1[%14, %15] %5 {extents = array<i64: 1, 1>} : (!tile.array<?x?xi32, "shape =1 16 strides 16 =1 align 16">, i32, i32, !tile.tile<1x1xi32>)
    %16 = tile.constant 0 : i32
    %17 = tile.constant 0 : i32
    tile.store %2[%16, %17] %10 {extents = array<i64: 64, 64>} : (!tile.array<?x?xf32>, i32, i32, !tile.tile<64x64xf32>)
    tile.return
  }
}
