// 25009198: the producer, which copied nothing, counted iterations to a number that all warps of
// consumers reduce, and ordered programs by it.
// warps 8
// stages 2
builtin.module {
  tile.kernel @kernel(%a0: !tile.array<?x?xf8E4M3FN, "shape =0 16 strides 16 =1 align 16">, %w1: !tile.array<?x?xi32, "shape 2 16 strides 16 =1 align 16">, %a2: !tile.array<?x?x?xf8E4M3FN, "shape 1 1 16 strides 16 16 =1 align 16">, %o3: !tile.array<?x?x?xf32, "shape 2 1 1 strides 1 1 =1 align 16">, %o4: !tile.array<?x?x?xf32, "shape 2 128 1 strides 128 1 =1 align 16">, %o5: !tile.array<?x?x?xf32, "shape 2 64 16 strides 128 =1 64 align 16">, %n0: i32, %n1: i32) {level = 0 : i64, argument_names = ["a0", "w1", "a2", "o3", "o4", "o5", "n0", "n1"], nonnegative = array<i64: 6, 7>} {
    %0 = tile.program_id 0 : i32
    %1 = tile.view %w1[%0] {kinds = ["index", "all"]} : (!tile.array<?x?xi32, "shape 2 16 strides 16 =1 align 16">, i32) -> !tile.array<?xi32, "shape 16 strides =1 align 16">
    %2 = tile.view %o3[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xf32, "shape 2 1 1 strides 1 1 =1 align 16">, i32) -> !tile.array<?x?xf32, "shape 1 1 strides 1 =1 align 4">
    %3 = tile.view %o4[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xf32, "shape 2 128 1 strides 128 1 =1 align 16">, i32) -> !tile.array<?x?xf32, "shape 128 1 strides 1 =1 align 16">
    %4 = tile.view %o5[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xf32, "shape 2 64 16 strides 128 =1 64 align 16">, i32) -> !tile.array<?x?xf32, "shape 64 16 strides =1 64 align 16">
    %5 = tile.arange 0 : !tile.tile<1024xi32>
    %6 = tile.constant 1023 : !tile.tile<1024xi32>
    %7 = tile.sub %5, %6 : !tile.tile<1024xi32>
    %8 = tile.splat %0 : (i32) -> !tile.tile<1024xi32>
    %9 = tile.add %7, %8 : !tile.tile<1024xi32>
    %10 = tile.reduce max[%9] {axis = 0 : i64} : (!tile.tile<1024xi32>) -> i32
    %11 = tile.constant 0.000000e+00 : !tile.tile<128x32xf32>
    %12 = tile.constant 0.000000e+00 : !tile.tile<128x32xf32>
    %13 = tile.constant 3 : i32
    %14 = tile.mod %10, %13 : i32
    %15 = tile.constant 32 : i32
    %16 = tile.mul %14, %15 : i32
    %17 = tile.constant 4 : i32
    %18 = tile.mod %10, %17 : i32
    %19 = tile.constant 32 : i32
    %20 = tile.mul %18, %19 : i32
    %21 = tile.constant 32 : i32
    %22, %23 = scf.for %k2 = %16 to %20 step %21 iter_args(%v3 = %11, %v4 = %12) -> (!tile.tile<128x32xf32>, !tile.tile<128x32xf32>) : i32 {
      %24 = tile.constant 0 : i32
      %25 = tile.load %a0[%24, %k2] {extents = array<i64: 128, 32>} : (!tile.array<?x?xf8E4M3FN, "shape =0 16 strides 16 =1 align 16">, i32, i32) -> !tile.tile<128x32xf8E4M3FN>
      %26 = tile.constant 32 : i32
      %27 = tile.floordiv %k2, %26 : i32
      %28 = tile.constant 32 : i32
      %29 = tile.mod %27, %28 : i32
      %30 = tile.load %1[%29] {extents = array<i64: -1>} : (!tile.array<?xi32, "shape 16 strides =1 align 16">, i32) -> i32
      %31 = tile.constant 0 : i32
      %32 = tile.max %30, %31 : i32
      %33 = tile.constant 8 : i32
      %34 = tile.mul %32, %33 : i32
      %35 = tile.constant 2 : !tile.tile<1xi32>
      %36 = tile.constant 0 : i32
      tile.store %1[%36] %35 {extents = array<i64: 1>} : (!tile.array<?xi32, "shape 16 strides =1 align 16">, i32, !tile.tile<1xi32>)
      %37 = tile.constant 2 : i32
      %38 = tile.mod %0, %37 : i32
      %39 = tile.view %a2[%38] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xf8E4M3FN, "shape 1 1 16 strides 16 16 =1 align 16">, i32) -> !tile.array<?x?xf8E4M3FN, "shape 1 16 strides 16 =1 align 16">
      %40 = tile.constant 8 : i32
      %41 = tile.load %39[%34, %40] {extents = array<i64: 32, 32>} : (!tile.array<?x?xf8E4M3FN, "shape 1 16 strides 16 =1 align 16">, i32, i32) -> !tile.tile<32x32xf8E4M3FN>
      %42 = tile.constant 0 : i32
      %43 = tile.load %a0[%42, %k2] {extents = array<i64: 128, 32>} : (!tile.array<?x?xf8E4M3FN, "shape =0 16 strides 16 =1 align 16">, i32, i32) -> !tile.tile<128x32xf8E4M3FN>
      %44 = tile.constant 0.000000e+00 : !tile.tile<128x32xf32>
      %45 = tile.dot %25, %41, %44 {precision = "ieee"} : (!tile.tile<128x32xf8E4M3FN>, !tile.tile<32x32xf8E4M3FN>, !tile.tile<128x32xf32>) -> !tile.tile<128x32xf32>
      %46 = tile.dot %43, %41, %45 {precision = "ieee"} : (!tile.tile<128x32xf8E4M3FN>, !tile.tile<32x32xf8E4M3FN>, !tile.tile<128x32xf32>) -> !tile.tile<128x32xf32>
      %47 = tile.add %v3, %46 : !tile.tile<128x32xf32>
      %48 = tile.dot %25, %41, %v4 {precision = "ieee"} : (!tile.tile<128x32xf8E4M3FN>, !tile.tile<32x32xf8E4M3FN>, !tile.tile<128x32xf32>) -> !tile.tile<128x32xf32>
      scf.yield %47, %48 : !tile.tile<128x32xf32>, !tile.tile<128x32xf32>
    }
    %49 = tile.extract %23 {index = array<i64: 0, 0>} : (!tile.tile<128x32xf32>) -> f32
    %50 = tile.splat %49 : (f32) -> !tile.tile<64x32xf32>
    %51 = tile.constant 4 : i32
    %52 = tile.mul %n1, %51 : i32
    %53 = tile.multiple %52, 4 : (i32) -> i32
    %54 = tile.constant 1.000000e+00 : !tile.tile<128x32xf32>
    %55 = tile.gt %23, %54 : !tile.tile<128x32xf32>
    %56 = tile.constant 0 : i32
    tile.store %2[%56, %53] %22 mask %55 {extents = array<i64: 128, 32>} : (!tile.array<?x?xf32, "shape 1 1 strides 1 =1 align 4">, i32, i32, !tile.tile<128x32xf32>, !tile.tile<128x32xi1>)
    %57 = tile.constant 3.000000e+00 : !tile.tile<128x32xf32>
    %58 = tile.ge %22, %57 : !tile.tile<128x32xf32>
    %59 = tile.constant 0 : i32
    %60 = tile.constant 0 : i32
    tile.store %3[%59, %60] %23 mask %58 {extents = array<i64: 128, 32>} : (!tile.array<?x?xf32, "shape 128 1 strides 1 =1 align 16">, i32, i32, !tile.tile<128x32xf32>, !tile.tile<128x32xi1>)
    %61 = tile.arange 0 : !tile.tile<64xi32>
    %62 = tile.constant 19 : !tile.tile<64xi32>
    %63 = tile.add %62, %61 : !tile.tile<64xi32>
    %64 = tile.constant 5 : i32
    %65 = tile.sub %n0, %64 : i32
    %66 = tile.arange 0 : !tile.tile<32xi32>
    %67 = tile.splat %65 : (i32) -> !tile.tile<32xi32>
    %68 = tile.add %67, %66 : !tile.tile<32xi32>
    %69 = tile.pointer %4 : (!tile.array<?x?xf32, "shape 64 16 strides =1 64 align 16">) -> !tile.ptr<f32>
    %70 = tile.reshape %63 : (!tile.tile<64xi32>) -> !tile.tile<64x1xi32>
    %71 = tile.splat %69 : (!tile.ptr<f32>) -> !tile.tile<64x1x!tile.ptr<f32>>
    %72 = tile.pointer_add %71, %70 : (!tile.tile<64x1x!tile.ptr<f32>>, !tile.tile<64x1xi32>) -> !tile.tile<64x1x!tile.ptr<f32>>
    %73 = tile.reshape %68 : (!tile.tile<32xi32>) -> !tile.tile<1x32xi32>
    %74 = tile.stride %4, 1 : (!tile.array<?x?xf32, "shape 64 16 strides =1 64 align 16">) -> i32
    %75 = tile.splat %74 : (i32) -> !tile.tile<1x32xi32>
    %76 = tile.mul %73, %75 : !tile.tile<1x32xi32>
    %77 = tile.broadcast %72 : (!tile.tile<64x1x!tile.ptr<f32>>) -> !tile.tile<64x32x!tile.ptr<f32>>
    %78 = tile.broadcast %76 : (!tile.tile<1x32xi32>) -> !tile.tile<64x32xi32>
    %79 = tile.pointer_add %77, %78 : (!tile.tile<64x32x!tile.ptr<f32>>, !tile.tile<64x32xi32>) -> !tile.tile<64x32x!tile.ptr<f32>>
    %80 = tile.reshape %63 : (!tile.tile<64xi32>) -> !tile.tile<64x1xi32>
    %81 = tile.constant 0 : !tile.tile<64x1xi32>
    %82 = tile.ge %80, %81 : !tile.tile<64x1xi32>
    %83 = tile.reshape %63 : (!tile.tile<64xi32>) -> !tile.tile<64x1xi32>
    %84 = tile.dim %4, 0 : (!tile.array<?x?xf32, "shape 64 16 strides =1 64 align 16">) -> i32
    %85 = tile.splat %84 : (i32) -> !tile.tile<64x1xi32>
    %86 = tile.lt %83, %85 : !tile.tile<64x1xi32>
    %87 = tile.and %82, %86 : !tile.tile<64x1xi1>
    %88 = tile.reshape %68 : (!tile.tile<32xi32>) -> !tile.tile<1x32xi32>
    %89 = tile.constant 0 : !tile.tile<1x32xi32>
    %90 = tile.ge %88, %89 : !tile.tile<1x32xi32>
    %91 = tile.broadcast %87 : (!tile.tile<64x1xi1>) -> !tile.tile<64x32xi1>
    %92 = tile.broadcast %90 : (!tile.tile<1x32xi1>) -> !tile.tile<64x32xi1>
    %93 = tile.and %91, %92 : !tile.tile<64x32xi1>
    %94 = tile.reshape %68 : (!tile.tile<32xi32>) -> !tile.tile<1x32xi32>
    %95 = tile.dim %4, 1 : (!tile.array<?x?xf32, "shape 64 16 strides =1 64 align 16">) -> i32
    %96 = tile.splat %95 : (i32) -> !tile.tile<1x32xi32>
    %97 = tile.lt %94, %96 : !tile.tile<1x32xi32>
    %98 = tile.broadcast %97 : (!tile.tile<1x32xi1>) -> !tile.tile<64x32xi1>
    %99 = tile.and %93, %98 : !tile.tile<64x32xi1>
    tile.store_pointers %79, %50 mask %99 : (!tile.tile<64x32x!tile.ptr<f32>>, !tile.tile<64x32xf32>, !tile.tile<64x32xi1>)
    tile.return
  }
}

