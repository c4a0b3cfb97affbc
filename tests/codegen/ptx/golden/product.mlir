builtin.module {
  tile.kernel @matmul(%a: !tile.array<?x?xbf16, "shape 1 1 strides 1 =1 align 16">, %b: !tile.array<?x?xbf16, "shape 1 1 strides 1 =1 align 16">, %c: !tile.array<?x?xbf16, "shape 1 1 strides 1 =1 align 16">) {level = 4 : i64, argument_names = ["a", "b", "c"], warps = 4 : i64, target = "sm_80", plan = "{'dots': ({'instruction': 'mma', 'warps': (1, 4)},), 'loads': ({'path': 'shared', 'vector': 2}, {'path': 'shared', 'vector': 2}), 'raster': 8}", shared_bytes = 4096 : i64, registers = 24 : i64} {
    %0 = tile.program_id 0 : i32
    %1 = tile.program_id 1 : i32
    %2 = tile.num_programs 0 : i32
    %3 = tile.num_programs 1 : i32
    %4 = tile.mul %1, %2 : i32
    %5 = tile.add %4, %0 : i32
    %6 = tile.constant 8 : i32
    %7 = tile.mul %6, %3 : i32
    %8 = tile.floordiv %5, %7 : i32
    %9 = tile.mul %8, %6 : i32
    %10 = tile.sub %2, %9 : i32
    %11 = tile.min %6, %10 : i32
    %12 = tile.mod %5, %7 : i32
    %13 = tile.mod %12, %11 : i32
    %program = tile.add %9, %13 : i32
    %program_1 = tile.floordiv %12, %11 : i32
    %14 = tile.constant 16 : i32
    %15 = tile.mul %program, %14 : i32
    %16 = tile.constant 64 : i32
    %17 = tile.mul %program_1, %16 : i32
    %18 = tile.constant 0.000000e+00 : !tile.tile<16x64xf32, "16x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">
    %19 = tile.dim %a, 1 : (!tile.array<?x?xbf16, "shape 1 1 strides 1 =1 align 16">) -> i32
    %20 = tile.constant 0 : i32
    %21 = tile.constant 32 : i32
    %22 = scf.for %k = %20 to %19 step %21 iter_args(%acc = %18) -> (!tile.tile<16x64xf32, "16x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">) : i32 {
      %23 = tile.load %a[%15, %k] {extents = array<i64: 16, 32>} : (!tile.array<?x?xbf16, "shape 1 1 strides 1 =1 align 16">, i32, i32) -> !tile.tile<16x32xbf16, "16x32: 4:4@0 | 32:1@1 | 4:1@0">
      %24 = tile.alloc 0 : !tile.shared<1, 16x32xbf16, "16x32xb16 swizzle 64">
      tile.block_barrier
      tile.write %24, %23 {conflicts = 1 : i64} : (!tile.shared<1, 16x32xbf16, "16x32xb16 swizzle 64">, !tile.tile<16x32xbf16, "16x32: 4:4@0 | 32:1@1 | 4:1@0">)
      tile.block_barrier
      %25 = tile.read %24 {conflicts = 1 : i64} : (!tile.shared<1, 16x32xbf16, "16x32xb16 swizzle 64">) -> !tile.tile<16x32xbf16, "16x32: 2:1@1 2:8@0 4:8@1 | 4:2@1 8:1@0 | 4:*">
      %26 = tile.load %b[%k, %17] {extents = array<i64: 32, 64>} : (!tile.array<?x?xbf16, "shape 1 1 strides 1 =1 align 16">, i32, i32) -> !tile.tile<32x64xbf16, "32x64: 16:2@0 | 32:1@1 | 2:32@1 2:1@0">
      %27 = tile.alloc 0 : !tile.shared<1, 32x64xbf16, "32x64xb16 swizzle 128">
      tile.block_barrier
      tile.write %27, %26 {conflicts = 1 : i64} : (!tile.shared<1, 32x64xbf16, "32x64xb16 swizzle 128">, !tile.tile<32x64xbf16, "32x64: 16:2@0 | 32:1@1 | 2:32@1 2:1@0">)
      tile.block_barrier
      %28 = tile.read %27 {conflicts = 1 : i64} : (!tile.shared<1, 32x64xbf16, "32x64xb16 swizzle 128">) -> !tile.tile<32x64xbf16, "32x64: 2:1@0 2:8@0 2:32@1 2:16@0 | 4:2@0 8:1@1 | 4:8@1">
      %29 = tile.dot %25, %28, %acc {precision = "ieee", instruction = "mma"} : (!tile.tile<16x32xbf16, "16x32: 2:1@1 2:8@0 4:8@1 | 4:2@1 8:1@0 | 4:*">, !tile.tile<32x64xbf16, "32x64: 2:1@0 2:8@0 2:32@1 2:16@0 | 4:2@0 8:1@1 | 4:8@1">, !tile.tile<16x64xf32, "16x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">) -> !tile.tile<16x64xf32, "16x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">
      scf.yield %29 : !tile.tile<16x64xf32, "16x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">
    }
    %30 = tile.cast %22 : !tile.tile<16x64xf32, "16x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1"> to !tile.tile<16x64xbf16, "16x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">
    tile.store %c[%15, %17] %30 {extents = array<i64: 16, 64>} : (!tile.array<?x?xbf16, "shape 1 1 strides 1 =1 align 16">, i32, i32, !tile.tile<16x64xbf16, "16x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">)
    tile.return
  }
}
