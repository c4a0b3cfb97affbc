// a consumer's load, converted through shared memory, was a copy that no producer makes (seed 1082, roles)
// sm_90a warps 8 stages 2: schedule-warpgroups: AttributeError: 'Alloc' object has no attribute 'ring'
builtin.module {
  tile.kernel @kernel(%a0: !tile.array<?x?xbf16, "shape 1 16 strides 16 =1 align 16">, %a1: !tile.array<?x?xbf16, "shape 16 16 strides 16 =1 align 16">, %a2: !tile.array<?xi32, "shape 4 strides =1 align 16">, %o3: !tile.array<?x?x?xf32, "shape 1 64 16 strides 128 16 =1 align 16">, %o4: !tile.array<?x?xi32, "shape 1 64 strides 64 =1 align 16">, %n0: i32) {level = 0 : i64, argument_names = ["a0", "a1", "a2", "o3", "o4", "n0"]} {
    %0 = tile.program_id 0 : i32
    %1 = tile.constant 0.000000e+00 : !tile.tile<64x32xf32>
    %2 = tile.constant 32 : i32
    %3 = tile.mul %n0, %2 : i32
    %4 = tile.constant 0 : i32
    %5 = tile.constant 32 : i32
    %6 = scf.for %k = %4 to %3 step %5 iter_args(%acc = %1) -> (!tile.tile<64x32xf32>) : i32 {
      %7 = tile.constant 64 : i32
      %8 = tile.mul %0, %7 : i32
      %9 = tile.load %a0[%8, %k] {extents = array<i64: 64, 32>} : (!tile.array<?x?xbf16, "shape 1 16 strides 16 =1 align 16">, i32, i32) -> !tile.tile<64x32xbf16>
      %10 = tile.constant 0 : i32
      %11 = tile.load %a1[%k, %10] {extents = array<i64: 32, 32>} : (!tile.array<?x?xbf16, "shape 16 16 strides 16 =1 align 16">, i32, i32) -> !tile.tile<32x32xbf16>
      %12 = tile.dot %9, %11, %acc {precision = "ieee"} : (!tile.tile<64x32xbf16>, !tile.tile<32x32xbf16>, !tile.tile<64x32xf32>) -> !tile.tile<64x32xf32>
      scf.yield %12 : !tile.tile<64x32xf32>
    }
    %13 = tile.view %o3[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xf32, "shape 1 64 16 strides 128 16 =1 align 16">, i32) -> !tile.array<?x?xf32, "shape 64 16 strides 16 =1 align 16">
    %14 = tile.constant 0 : i32
    %15 = tile.constant 0 : i32
    tile.store %13[%14, %15] %6 {extents = array<i64: 64, 32>} : (!tile.array<?x?xf32, "shape 64 16 strides 16 =1 align 16">, i32, i32, !tile.tile<64x32xf32>)
    %16 = tile.view %o4[%0] {kinds = ["index", "all"]} : (!tile.array<?x?xi32, "shape 1 64 strides 64 =1 align 16">, i32) -> !tile.array<?xi32, "shape 64 strides =1 align 16">
    %17 = tile.load %a2[%0] {extents = array<i64: 64>} : (!tile.array<?xi32, "shape 4 strides =1 align 16">, i32) -> !tile.tile<64xi32>
    %18 = tile.flip %17 {axis = 0 : i64} : (!tile.tile<64xi32>) -> !tile.tile<64xi32>
    %19 = tile.constant 0 : i32
    tile.store %16[%19] %18 {extents = array<i64: 64>} : (!tile.array<?xi32, "shape 64 strides =1 align 16">, i32, !tile.tile<64xi32>)
    tile.return
  }
}

