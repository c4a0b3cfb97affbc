builtin.module {
  tile.kernel @softmax(%x: !tile.array<?x?xf32, "shape 1 1 strides 1 =1 align 16">, %o: !tile.array<?x?xf32, "shape 1 1 strides 1 =1 align 16">) {level = 4 : i64, argument_names = ["x", "o"], warps = 4 : i64, target = "sm_80", plan = "{'loads': ({'vector': 4},)}", shared_bytes = 0 : i64, registers = 2 : i64} {
    %0 = tile.program_id 0 : i32
    %1 = tile.constant 3 : i32
    %2 = tile.mul %0, %1 : i32
    %3 = tile.arange 0 : !tile.tile<7xi32, "7: - | 8:1@0 4:* | 4:*">
    %4 = tile.dim %x, 1 : (!tile.array<?x?xf32, "shape 1 1 strides 1 =1 align 16">) -> i32
    %5 = tile.splat %4 : (i32) -> !tile.tile<7xi32, "7: - | 8:1@0 4:* | 4:*">
    %6 = tile.lt %3, %5 : !tile.tile<7xi32, "7: - | 8:1@0 4:* | 4:*">
    %7 = tile.reshape %6 : (!tile.tile<7xi1, "7: - | 8:1@0 4:* | 4:*">) -> !tile.tile<1x7xi1, "1x7: - | 8:1@1 4:* | 4:*">
    %8 = tile.constant 0 : i32
    %9 = tile.load %x[%2, %8] {extents = array<i64: 3, 7>} : (!tile.array<?x?xf32, "shape 1 1 strides 1 =1 align 16">, i32, i32) -> !tile.tile<3x7xf32, "3x7: - | 8:1@1 4:1@0 | 2:4@0 2:*">
    %10 = tile.broadcast %7 : (!tile.tile<1x7xi1, "1x7: - | 8:1@1 4:* | 4:*">) -> !tile.tile<3x7xi1, "3x7: - | 8:1@1 4:1@0 | 2:4@0 2:*">
    %11 = tile.constant 0xff800000 : !tile.tile<3x7xf32, "3x7: - | 8:1@1 4:1@0 | 2:4@0 2:*">
    %12 = tile.select %10, %9, %11 : !tile.tile<3x7xf32, "3x7: - | 8:1@1 4:1@0 | 2:4@0 2:*">
    %13 = tile.reduce max[%12] {axis = 1 : i64} : (!tile.tile<3x7xf32, "3x7: - | 8:1@1 4:1@0 | 2:4@0 2:*">) -> !tile.tile<3xf32, "3: - | 8:* 4:1@0 | 2:4@0 2:*">
    %14 = tile.reshape %13 : (!tile.tile<3xf32, "3: - | 8:* 4:1@0 | 2:4@0 2:*">) -> !tile.tile<3x1xf32, "3x1: - | 8:* 4:1@0 | 2:4@0 2:*">
    %15 = tile.broadcast %14 : (!tile.tile<3x1xf32, "3x1: - | 8:* 4:1@0 | 2:4@0 2:*">) -> !tile.tile<3x7xf32, "3x7: - | 8:1@1 4:1@0 | 2:4@0 2:*">
    %16 = tile.sub %12, %15 : !tile.tile<3x7xf32, "3x7: - | 8:1@1 4:1@0 | 2:4@0 2:*">
    %17 = tile.exp %16 : !tile.tile<3x7xf32, "3x7: - | 8:1@1 4:1@0 | 2:4@0 2:*">
    %18 = tile.reduce sum[%17] {axis = 1 : i64} : (!tile.tile<3x7xf32, "3x7: - | 8:1@1 4:1@0 | 2:4@0 2:*">) -> !tile.tile<3xf32, "3: - | 8:* 4:1@0 | 2:4@0 2:*">
    %19 = tile.reshape %18 : (!tile.tile<3xf32, "3: - | 8:* 4:1@0 | 2:4@0 2:*">) -> !tile.tile<3x1xf32, "3x1: - | 8:* 4:1@0 | 2:4@0 2:*">
    %20 = tile.broadcast %19 : (!tile.tile<3x1xf32, "3x1: - | 8:* 4:1@0 | 2:4@0 2:*">) -> !tile.tile<3x7xf32, "3x7: - | 8:1@1 4:1@0 | 2:4@0 2:*">
    %21 = tile.div %17, %20 : !tile.tile<3x7xf32, "3x7: - | 8:1@1 4:1@0 | 2:4@0 2:*">
    tile.store %o[%2, %8] %21 {extents = array<i64: 3, 7>} : (!tile.array<?x?xf32, "shape 1 1 strides 1 =1 align 16">, i32, i32, !tile.tile<3x7xf32, "3x7: - | 8:1@1 4:1@0 | 2:4@0 2:*">)
    tile.return
  }
}
