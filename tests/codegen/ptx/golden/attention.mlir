builtin.module {
  tile.kernel @attention(%q: !tile.array<?x?x?x?xbf16, "shape 1 1 1 1 strides 1 1 1 =1 align 16">, %k: !tile.array<?x?x?x?xbf16, "shape 1 1 1 1 strides 1 1 1 =1 align 16">, %v: !tile.array<?x?x?x?xbf16, "shape 1 1 1 1 strides 1 1 1 =1 align 16">, %o: !tile.array<?x?x?x?xbf16, "shape 1 1 1 1 strides 1 1 1 =1 align 16">, %scale: f32) {level = 4 : i64, argument_names = ["q", "k", "v", "o", "scale"], warps = 4 : i64, target = "sm_80", plan = "{'dots': ({'instruction': 'mma', 'warps': (1, 4)}, {'instruction': 'mma', 'warps': (1, 4)}), 'loads': ({'path': 'shared', 'vector': 2}, {'path': 'shared', 'vector': 2}, {'path': 'shared', 'vector': 2})}", shared_bytes = 4096 : i64, registers = 46 : i64} {
    %0 = tile.program_id 0 : i32
    %1 = tile.constant 4 : i32
    %2 = tile.mul %0, %1 : i32
    %3 = tile.program_id 1 : i32
    %4 = tile.program_id 2 : i32
    %5 = tile.view %q[%4, %3] {kinds = ["index", "index", "all", "all"]} : (!tile.array<?x?x?x?xbf16, "shape 1 1 1 1 strides 1 1 1 =1 align 16">, i32, i32) -> !tile.array<?x?xbf16, "shape 1 1 strides 1 =1 align 2">
    %6 = tile.view %k[%4, %3] {kinds = ["index", "index", "all", "all"]} : (!tile.array<?x?x?x?xbf16, "shape 1 1 1 1 strides 1 1 1 =1 align 16">, i32, i32) -> !tile.array<?x?xbf16, "shape 1 1 strides 1 =1 align 2">
    %7 = tile.view %v[%4, %3] {kinds = ["index", "index", "all", "all"]} : (!tile.array<?x?x?x?xbf16, "shape 1 1 1 1 strides 1 1 1 =1 align 16">, i32, i32) -> !tile.array<?x?xbf16, "shape 1 1 strides 1 =1 align 2">
    %8 = tile.view %o[%4, %3] {kinds = ["index", "index", "all", "all"]} : (!tile.array<?x?x?x?xbf16, "shape 1 1 1 1 strides 1 1 1 =1 align 16">, i32, i32) -> !tile.array<?x?xbf16, "shape 1 1 strides 1 =1 align 2">
    %9 = tile.constant 1.44269502 : f32
    %10 = tile.mul %scale, %9 : f32
    %11 = tile.dim %k, 2 : (!tile.array<?x?x?x?xbf16, "shape 1 1 1 1 strides 1 1 1 =1 align 16">) -> i32
    %12 = tile.constant 0 : i32
    %13 = tile.load %5[%2, %12] {extents = array<i64: 4, 64>} : (!tile.array<?x?xbf16, "shape 1 1 strides 1 =1 align 2">, i32, i32) -> !tile.tile<4x64xbf16, "4x64: 2:2@0 | 32:1@1 | 2:32@1 2:1@0">
    %14 = tile.alloc 0 : !tile.shared<1, 4x64xbf16, "4x64xb16 swizzle 128">
    tile.write %14, %13 {conflicts = 1 : i64} : (!tile.shared<1, 4x64xbf16, "4x64xb16 swizzle 128">, !tile.tile<4x64xbf16, "4x64: 2:2@0 | 32:1@1 | 2:32@1 2:1@0">)
    tile.block_barrier
    %15 = tile.read %14 {conflicts = 1 : i64} : (!tile.shared<1, 4x64xbf16, "4x64xb16 swizzle 128">) -> !tile.tile<4x64xbf16, "4x64: 2:1@1 2:8@0 8:8@1 | 4:2@1 8:1@0 | 4:*">
    %16 = tile.constant 0xff800000 : !tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">
    %17 = tile.constant 0.000000e+00 : !tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">
    %18 = tile.constant 0.000000e+00 : !tile.tile<4x64xf32, "4x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">
    %19 = tile.constant 32 : i32
    %20 = tile.arange 0 : !tile.tile<32xi32, "32: 2:1@0 | 4:2@0 8:* | 4:8@0">
    %21 = tile.splat %11 : (i32) -> !tile.tile<1x32xi32, "1x32: 2:1@1 | 4:2@1 8:* | 4:8@1">
    %22 = tile.constant 0.000000e+00 : !tile.tile<4x32xf32, "4x32: 2:1@1 2:8@0 | 4:2@1 8:1@0 | 4:8@1">
    %23 = tile.constant 0xff800000 : !tile.tile<4x32xf32, "4x32: 2:1@1 2:8@0 | 4:2@1 8:1@0 | 4:8@1">
    %24 = tile.splat %10 : (f32) -> !tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">
    %25 = tile.splat %10 : (f32) -> !tile.tile<4x32xf32, "4x32: 2:1@1 2:8@0 | 4:2@1 8:1@0 | 4:8@1">
    %26, %27, %28 = scf.for %n = %12 to %11 step %19 iter_args(%total = %17, %acc = %18, %top = %16) -> (!tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">, !tile.tile<4x64xf32, "4x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">, !tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">) : i32 {
      %29 = tile.splat %n : (i32) -> !tile.tile<32xi32, "32: 2:1@0 | 4:2@0 8:* | 4:8@0">
      %30 = tile.add %29, %20 : !tile.tile<32xi32, "32: 2:1@0 | 4:2@0 8:* | 4:8@0">
      %31 = tile.reshape %30 : (!tile.tile<32xi32, "32: 2:1@0 | 4:2@0 8:* | 4:8@0">) -> !tile.tile<1x32xi32, "1x32: 2:1@1 | 4:2@1 8:* | 4:8@1">
      %32 = tile.lt %31, %21 : !tile.tile<1x32xi32, "1x32: 2:1@1 | 4:2@1 8:* | 4:8@1">
      %33 = tile.load %6[%n, %12] {extents = array<i64: 32, 64>} : (!tile.array<?x?xbf16, "shape 1 1 strides 1 =1 align 2">, i32, i32) -> !tile.tile<32x64xbf16, "32x64: 16:2@0 | 32:1@1 | 2:32@1 2:1@0">
      %34 = tile.alloc 0 : !tile.shared<1, 32x64xbf16, "32x64xb16 swizzle 128">
      tile.block_barrier
      tile.write %34, %33 {conflicts = 1 : i64} : (!tile.shared<1, 32x64xbf16, "32x64xb16 swizzle 128">, !tile.tile<32x64xbf16, "32x64: 16:2@0 | 32:1@1 | 2:32@1 2:1@0">)
      tile.block_barrier
      %35 = tile.read %34 {conflicts = 1 : i64} : (!tile.shared<1, 32x64xbf16, "32x64xb16 swizzle 128">) -> !tile.tile<32x64xbf16, "32x64: 2:1@1 8:8@1 | 4:2@1 8:1@0 | 4:8@0">
      %36 = tile.transpose %35 {permutation = array<i64: 1, 0>} : (!tile.tile<32x64xbf16, "32x64: 2:1@1 8:8@1 | 4:2@1 8:1@0 | 4:8@0">) -> !tile.tile<64x32xbf16, "64x32: 2:1@0 8:8@0 | 4:2@0 8:1@1 | 4:8@1">
      %37 = tile.dot %15, %36, %22 {precision = "ieee", instruction = "mma"} : (!tile.tile<4x64xbf16, "4x64: 2:1@1 2:8@0 8:8@1 | 4:2@1 8:1@0 | 4:*">, !tile.tile<64x32xbf16, "64x32: 2:1@0 8:8@0 | 4:2@0 8:1@1 | 4:8@1">, !tile.tile<4x32xf32, "4x32: 2:1@1 2:8@0 | 4:2@1 8:1@0 | 4:8@1">) -> !tile.tile<4x32xf32, "4x32: 2:1@1 2:8@0 | 4:2@1 8:1@0 | 4:8@1">
      %38 = tile.broadcast %32 : (!tile.tile<1x32xi1, "1x32: 2:1@1 | 4:2@1 8:* | 4:8@1">) -> !tile.tile<4x32xi1, "4x32: 2:1@1 2:8@0 | 4:2@1 8:1@0 | 4:8@1">
      %39 = tile.select %38, %37, %23 : !tile.tile<4x32xf32, "4x32: 2:1@1 2:8@0 | 4:2@1 8:1@0 | 4:8@1">
      %40 = tile.reduce_partial max[%39] {axis = 1 : i64} : (!tile.tile<4x32xf32, "4x32: 2:1@1 2:8@0 | 4:2@1 8:1@0 | 4:8@1">) -> !tile.tile<4x4xf32, "4x4: 2:8@0 | 4:* 8:1@0 | 4:1@1">
      %41 = tile.alloc 0 : !tile.shared<1, 4x4xf32, "4x4xb32">
      tile.block_barrier
      tile.write %41, %40 {conflicts = 1 : i64} : (!tile.shared<1, 4x4xf32, "4x4xb32">, !tile.tile<4x4xf32, "4x4: 2:8@0 | 4:* 8:1@0 | 4:1@1">)
      tile.block_barrier
      %42 = tile.read %41 {conflicts = 1 : i64} : (!tile.shared<1, 4x4xf32, "4x4xb32">) -> !tile.tile<4x4xf32, "4x4: 4:1@1 2:8@0 | 4:* 8:1@0 | 4:*">
      %43 = tile.reduce max[%42] {axis = 1 : i64} : (!tile.tile<4x4xf32, "4x4: 4:1@1 2:8@0 | 4:* 8:1@0 | 4:*">) -> !tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">
      %44 = tile.mul %43, %24 : !tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">
      %45 = tile.max %top, %44 : !tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">
      %46 = tile.eq %45, %16 : !tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">
      %47 = tile.select %46, %17, %45 : !tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">
      %48 = tile.mul %39, %25 : !tile.tile<4x32xf32, "4x32: 2:1@1 2:8@0 | 4:2@1 8:1@0 | 4:8@1">
      %49 = tile.reshape %47 : (!tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">) -> !tile.tile<4x1xf32, "4x1: 2:8@0 | 4:* 8:1@0 | 4:*">
      %50 = tile.broadcast %49 : (!tile.tile<4x1xf32, "4x1: 2:8@0 | 4:* 8:1@0 | 4:*">) -> !tile.tile<4x32xf32, "4x32: 2:1@1 2:8@0 | 4:2@1 8:1@0 | 4:8@1">
      %51 = tile.sub %48, %50 : !tile.tile<4x32xf32, "4x32: 2:1@1 2:8@0 | 4:2@1 8:1@0 | 4:8@1">
      %52 = tile.exp2 %51 : !tile.tile<4x32xf32, "4x32: 2:1@1 2:8@0 | 4:2@1 8:1@0 | 4:8@1">
      %53 = tile.sub %top, %47 : !tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">
      %54 = tile.exp2 %53 : !tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">
      %55 = tile.mul %total, %54 : !tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">
      %56 = tile.reduce_partial sum[%52] {axis = 1 : i64} : (!tile.tile<4x32xf32, "4x32: 2:1@1 2:8@0 | 4:2@1 8:1@0 | 4:8@1">) -> !tile.tile<4x4xf32, "4x4: 2:8@0 | 4:* 8:1@0 | 4:1@1">
      %57 = tile.alloc 0 : !tile.shared<1, 4x4xf32, "4x4xb32">
      tile.block_barrier
      tile.write %57, %56 {conflicts = 1 : i64} : (!tile.shared<1, 4x4xf32, "4x4xb32">, !tile.tile<4x4xf32, "4x4: 2:8@0 | 4:* 8:1@0 | 4:1@1">)
      tile.block_barrier
      %58 = tile.read %57 {conflicts = 1 : i64} : (!tile.shared<1, 4x4xf32, "4x4xb32">) -> !tile.tile<4x4xf32, "4x4: 4:1@1 2:8@0 | 4:* 8:1@0 | 4:*">
      %59 = tile.reduce sum[%58] {axis = 1 : i64} : (!tile.tile<4x4xf32, "4x4: 4:1@1 2:8@0 | 4:* 8:1@0 | 4:*">) -> !tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">
      %60 = tile.add %55, %59 : !tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">
      %61 = tile.cast %52 : !tile.tile<4x32xf32, "4x32: 2:1@1 2:8@0 | 4:2@1 8:1@0 | 4:8@1"> to !tile.tile<4x32xbf16, "4x32: 2:1@1 2:8@0 | 4:2@1 8:1@0 | 4:8@1">
      %62 = tile.alloc 0 : !tile.shared<1, 4x32xbf16, "4x32xb16 swizzle 64">
      tile.block_barrier
      tile.write %62, %61 {conflicts = 1 : i64} : (!tile.shared<1, 4x32xbf16, "4x32xb16 swizzle 64">, !tile.tile<4x32xbf16, "4x32: 2:1@1 2:8@0 | 4:2@1 8:1@0 | 4:8@1">)
      tile.block_barrier
      %63 = tile.read %62 {conflicts = 1 : i64} : (!tile.shared<1, 4x32xbf16, "4x32xb16 swizzle 64">) -> !tile.tile<4x32xbf16, "4x32: 2:1@1 2:8@0 4:8@1 | 4:2@1 8:1@0 | 4:*">
      %64 = tile.load %7[%n, %12] {extents = array<i64: 32, 64>} : (!tile.array<?x?xbf16, "shape 1 1 strides 1 =1 align 2">, i32, i32) -> !tile.tile<32x64xbf16, "32x64: 16:2@0 | 32:1@1 | 2:32@1 2:1@0">
      %65 = tile.alloc 0 : !tile.shared<1, 32x64xbf16, "32x64xb16 swizzle 128">
      tile.block_barrier
      tile.write %65, %64 {conflicts = 1 : i64} : (!tile.shared<1, 32x64xbf16, "32x64xb16 swizzle 128">, !tile.tile<32x64xbf16, "32x64: 16:2@0 | 32:1@1 | 2:32@1 2:1@0">)
      tile.block_barrier
      %66 = tile.read %65 {conflicts = 1 : i64} : (!tile.shared<1, 32x64xbf16, "32x64xb16 swizzle 128">) -> !tile.tile<32x64xbf16, "32x64: 2:1@0 2:8@0 2:32@1 2:16@0 | 4:2@0 8:1@1 | 4:8@1">
      %67 = tile.reshape %54 : (!tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">) -> !tile.tile<4x1xf32, "4x1: 2:8@0 | 4:* 8:1@0 | 4:*">
      %68 = tile.broadcast %67 : (!tile.tile<4x1xf32, "4x1: 2:8@0 | 4:* 8:1@0 | 4:*">) -> !tile.tile<4x64xf32, "4x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">
      %69 = tile.mul %acc, %68 : !tile.tile<4x64xf32, "4x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">
      %70 = tile.dot %63, %66, %69 {precision = "ieee", instruction = "mma"} : (!tile.tile<4x32xbf16, "4x32: 2:1@1 2:8@0 4:8@1 | 4:2@1 8:1@0 | 4:*">, !tile.tile<32x64xbf16, "32x64: 2:1@0 2:8@0 2:32@1 2:16@0 | 4:2@0 8:1@1 | 4:8@1">, !tile.tile<4x64xf32, "4x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">) -> !tile.tile<4x64xf32, "4x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">
      scf.yield %60, %70, %45 : !tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">, !tile.tile<4x64xf32, "4x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">, !tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">
    }
    %71 = tile.reshape %26 : (!tile.tile<4xf32, "4: 2:8@0 | 4:* 8:1@0 | 4:*">) -> !tile.tile<4x1xf32, "4x1: 2:8@0 | 4:* 8:1@0 | 4:*">
    %72 = tile.constant 0.000000e+00 : !tile.tile<4x1xf32, "4x1: 2:8@0 | 4:* 8:1@0 | 4:*">
    %73 = tile.gt %71, %72 : !tile.tile<4x1xf32, "4x1: 2:8@0 | 4:* 8:1@0 | 4:*">
    %74 = tile.broadcast %71 : (!tile.tile<4x1xf32, "4x1: 2:8@0 | 4:* 8:1@0 | 4:*">) -> !tile.tile<4x64xf32, "4x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">
    %75 = tile.div %27, %74 : !tile.tile<4x64xf32, "4x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">
    %76 = tile.broadcast %73 : (!tile.tile<4x1xi1, "4x1: 2:8@0 | 4:* 8:1@0 | 4:*">) -> !tile.tile<4x64xi1, "4x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">
    %77 = tile.select %76, %75, %18 : !tile.tile<4x64xf32, "4x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">
    %78 = tile.cast %77 : !tile.tile<4x64xf32, "4x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1"> to !tile.tile<4x64xbf16, "4x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">
    tile.store %8[%2, %12] %78 {extents = array<i64: 4, 64>} : (!tile.array<?x?xbf16, "shape 1 1 strides 1 =1 align 2">, i32, i32, !tile.tile<4x64xbf16, "4x64: 2:1@1 2:8@0 2:32@1 | 4:2@1 8:1@0 | 4:8@1">)
    tile.return
  }
}
