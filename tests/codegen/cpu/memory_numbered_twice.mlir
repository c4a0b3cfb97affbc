// An LLVM with assertions aborted while it numbered what loops write: on the CPU
builtin.module {
  tile.kernel @kernel(%a0: !tile.array<?xf32, "shape 1 strides =1 align 16">, %a1: !tile.array<?x?xi32, "shape 1 1 strides 1 =1 align 16">, %a2: !tile.array<?x?xf32, "shape 4 =1 strides =0 =0 align 16">, %a3: !tile.array<?x?x?xbf16, "shape 8 16 =1 strides 16 =1 =1 align 16">, %a4: !tile.array<?x?xf32, "shape 1 1 strides 1 =1 align 16">, %a5: !tile.array<?x?xi64, "shape 1 =1 strides =0 =0 align 16">, %o6: !tile.array<?x?xf32, "shape 1 1 strides 1 =1 align 16">, %o7: !tile.array<?x?xi1, "shape 1 1 strides 1 =1 align 16">, %o8: !tile.array<?x?x?xf32, "shape 1 1 1 strides 1 1 =1 align 16">, %n0: i32, %n1: i32) {level = 0 : i64, argument_names = ["a0", "a1", "a2", "a3", "a4", "a5", "o6", "o7", "o8", "n0", "n1"]} {
    %0 = tile.program_id 0 : i32
    %1 = tile.view %o6[%0] {kinds = ["index", "all"]} : (!tile.array<?x?xf32, "shape 1 1 strides 1 =1 align 16">, i32) -> !tile.array<?xf32, "shape 1 strides =1 align 4">
    %2 = tile.view %o7[%0] {kinds = ["index", "all"]} : (!tile.array<?x?xi1, "shape 1 1 strides 1 =1 align 16">, i32) -> !tile.array<?xi1, "shape 1 strides =1 align 1">
    %3 = tile.view %o8[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xf32, "shape 1 1 1 strides 1 1 =1 align 16">, i32) -> !tile.array<?x?xf32, "shape 1 1 strides 1 =1 align 4">
    %4 = tile.constant 3.000000e+00 : !tile.tile<16x19xf32>
    %5 = tile.constant -3.000000e+00 : !tile.tile<32x16xf32>
    %6 = tile.constant -1.000000e+00 : !tile.tile<19x32xf32>
    %7 = tile.transpose %4 {permutation = array<i64: 1, 0>} : (!tile.tile<16x19xf32>) -> !tile.tile<19x16xf32>
    %8 = tile.transpose %5 {permutation = array<i64: 1, 0>} : (!tile.tile<32x16xf32>) -> !tile.tile<16x32xf32>
    %9 = tile.dot %7, %8, %6 {precision = "ieee"} : (!tile.tile<19x16xf32>, !tile.tile<16x32xf32>, !tile.tile<19x32xf32>) -> !tile.tile<19x32xf32>
    %10 = tile.reshape %5 : (!tile.tile<32x16xf32>) -> !tile.tile<32x16x1xf32>
    %11 = tile.reshape %5 : (!tile.tile<32x16xf32>) -> !tile.tile<32x16x1xf32>
    %12 = tile.concat[%10, %11] {axis = 2 : i64} : (!tile.tile<32x16x1xf32>, !tile.tile<32x16x1xf32>) -> !tile.tile<32x16x2xf32>
    %13 = tile.reshape %12 : (!tile.tile<32x16x2xf32>) -> !tile.tile<32x32xf32>
    %14 = tile.constant 4 : i32
    %15 = tile.mul %0, %14 : i32
    %16 = tile.multiple %15, 4 : (i32) -> i32
    %17 = tile.arange 0 : !tile.tile<5xi32>
    %18 = tile.splat %16 : (i32) -> !tile.tile<5xi32>
    %19 = tile.add %18, %17 : !tile.tile<5xi32>
    %20 = tile.pointer %a0 : (!tile.array<?xf32, "shape 1 strides =1 align 16">) -> !tile.ptr<f32>
    %21 = tile.splat %20 : (!tile.ptr<f32>) -> !tile.tile<5x!tile.ptr<f32>>
    %22 = tile.pointer_add %21, %19 : (!tile.tile<5x!tile.ptr<f32>>, !tile.tile<5xi32>) -> !tile.tile<5x!tile.ptr<f32>>
    %23 = tile.constant 0 : !tile.tile<5xi32>
    %24 = tile.ge %19, %23 : !tile.tile<5xi32>
    %25 = tile.dim %a0, 0 : (!tile.array<?xf32, "shape 1 strides =1 align 16">) -> i32
    %26 = tile.splat %25 : (i32) -> !tile.tile<5xi32>
    %27 = tile.lt %19, %26 : !tile.tile<5xi32>
    %28 = tile.and %24, %27 : !tile.tile<5xi1>
    %29 = tile.load_pointers %22 mask %28 : (!tile.tile<5x!tile.ptr<f32>>, !tile.tile<5xi1>) -> !tile.tile<5xf32>
    %30 = tile.constant 2 : i32
    %31 = tile.mul %n0, %30 : i32
    %32 = tile.constant 0 : i32
    %33 = tile.constant 2 : i32
    %34 = scf.for %i9 = %32 to %31 step %33 iter_args(%v3 = %6) -> (!tile.tile<19x32xf32>) : i32 {
      %35 = tile.scan sum[%v3] {axis = 1 : i64} : (!tile.tile<19x32xf32>) -> !tile.tile<19x32xf32>
      %36 = tile.constant 3 : i32
      %37 = tile.sub %n1, %36 : i32
      %38 = tile.arange 0 : !tile.tile<13xi32>
      %39 = tile.constant 7 : !tile.tile<13xi32>
      %40 = tile.lt %38, %39 : !tile.tile<13xi32>
      %41 = tile.reshape %40 : (!tile.tile<13xi1>) -> !tile.tile<1x13xi1>
      %42 = tile.constant 2 : i32
      %43 = tile.splat %42 : (i32) -> !tile.tile<16x13xi32>
      %44 = tile.constant 0 : i32
      %45 = tile.broadcast %41 : (!tile.tile<1x13xi1>) -> !tile.tile<16x13xi1>
      %46 = tile.load %a1[%44, %37] mask %45 other %43 {extents = array<i64: 16, 13>} : (!tile.array<?x?xi32, "shape 1 1 strides 1 =1 align 16">, i32, i32, !tile.tile<16x13xi1>, !tile.tile<16x13xi32>) -> !tile.tile<16x13xi32>
      %47 = tile.max %v3, %v3 : !tile.tile<19x32xf32>
      scf.yield %47 : !tile.tile<19x32xf32>
    }
    %48 = tile.reduce max[%13] {axis = 1 : i64} : (!tile.tile<32x32xf32>) -> !tile.tile<32xf32>
    %49 = tile.reshape %48 : (!tile.tile<32xf32>) -> !tile.tile<32x1xf32>
    %50 = tile.scan sum[%4] {axis = 0 : i64, reverse} : (!tile.tile<16x19xf32>) -> !tile.tile<16x19xf32>
    %51 = tile.constant 13 : i32
    %52 = tile.mul %n0, %51 : i32
    %53 = tile.arange 0 : !tile.tile<33xi32>
    %54 = tile.splat %52 : (i32) -> !tile.tile<33xi32>
    %55 = tile.add %54, %53 : !tile.tile<33xi32>
    %56 = tile.constant 1 : i32
    %57 = tile.sub %n0, %56 : i32
    %58 = tile.arange 0 : !tile.tile<5xi32>
    %59 = tile.splat %57 : (i32) -> !tile.tile<5xi32>
    %60 = tile.add %59, %58 : !tile.tile<5xi32>
    %61 = tile.pointer %a2 : (!tile.array<?x?xf32, "shape 4 =1 strides =0 =0 align 16">) -> !tile.ptr<f32>
    %62 = tile.reshape %55 : (!tile.tile<33xi32>) -> !tile.tile<33x1xi32>
    %63 = tile.constant 0 : !tile.tile<33x1xi32>
    %64 = tile.mul %62, %63 : !tile.tile<33x1xi32>
    %65 = tile.splat %61 : (!tile.ptr<f32>) -> !tile.tile<33x1x!tile.ptr<f32>>
    %66 = tile.pointer_add %65, %64 : (!tile.tile<33x1x!tile.ptr<f32>>, !tile.tile<33x1xi32>) -> !tile.tile<33x1x!tile.ptr<f32>>
    %67 = tile.reshape %60 : (!tile.tile<5xi32>) -> !tile.tile<1x5xi32>
    %68 = tile.constant 0 : !tile.tile<1x5xi32>
    %69 = tile.mul %67, %68 : !tile.tile<1x5xi32>
    %70 = tile.broadcast %66 : (!tile.tile<33x1x!tile.ptr<f32>>) -> !tile.tile<33x5x!tile.ptr<f32>>
    %71 = tile.broadcast %69 : (!tile.tile<1x5xi32>) -> !tile.tile<33x5xi32>
    %72 = tile.pointer_add %70, %71 : (!tile.tile<33x5x!tile.ptr<f32>>, !tile.tile<33x5xi32>) -> !tile.tile<33x5x!tile.ptr<f32>>
    %73 = tile.reshape %55 : (!tile.tile<33xi32>) -> !tile.tile<33x1xi32>
    %74 = tile.constant 0 : !tile.tile<33x1xi32>
    %75 = tile.ge %73, %74 : !tile.tile<33x1xi32>
    %76 = tile.reshape %55 : (!tile.tile<33xi32>) -> !tile.tile<33x1xi32>
    %77 = tile.dim %a2, 0 : (!tile.array<?x?xf32, "shape 4 =1 strides =0 =0 align 16">) -> i32
    %78 = tile.splat %77 : (i32) -> !tile.tile<33x1xi32>
    %79 = tile.lt %76, %78 : !tile.tile<33x1xi32>
    %80 = tile.and %75, %79 : !tile.tile<33x1xi1>
    %81 = tile.reshape %60 : (!tile.tile<5xi32>) -> !tile.tile<1x5xi32>
    %82 = tile.constant 0 : !tile.tile<1x5xi32>
    %83 = tile.ge %81, %82 : !tile.tile<1x5xi32>
    %84 = tile.broadcast %80 : (!tile.tile<33x1xi1>) -> !tile.tile<33x5xi1>
    %85 = tile.broadcast %83 : (!tile.tile<1x5xi1>) -> !tile.tile<33x5xi1>
    %86 = tile.and %84, %85 : !tile.tile<33x5xi1>
    %87 = tile.reshape %60 : (!tile.tile<5xi32>) -> !tile.tile<1x5xi32>
    %88 = tile.constant 1 : !tile.tile<1x5xi32>
    %89 = tile.lt %87, %88 : !tile.tile<1x5xi32>
    %90 = tile.broadcast %89 : (!tile.tile<1x5xi1>) -> !tile.tile<33x5xi1>
    %91 = tile.and %86, %90 : !tile.tile<33x5xi1>
    %92 = tile.load_pointers %72 mask %91 : (!tile.tile<33x5x!tile.ptr<f32>>, !tile.tile<33x5xi1>) -> !tile.tile<33x5xf32>
    %93 = tile.constant 16 : i32
    %94 = tile.mul %n0, %93 : i32
    %95 = tile.multiple %94, 16 : (i32) -> i32
    %96 = tile.arange 0 : !tile.tile<5xi32>
    %97 = tile.constant 2 : i32
    %98 = tile.sub %0, %97 : i32
    %99 = tile.splat %98 : (i32) -> !tile.tile<5xi32>
    %100 = tile.lt %96, %99 : !tile.tile<5xi32>
    %101 = tile.reshape %100 : (!tile.tile<5xi1>) -> !tile.tile<5x1xi1>
    %102 = tile.load %a2[%95, %0] mask %101 {extents = array<i64: 5, 1>} : (!tile.array<?x?xf32, "shape 4 =1 strides =0 =0 align 16">, i32, i32, !tile.tile<5x1xi1>) -> !tile.tile<5x1xf32>
    %103 = tile.constant 0.000000e+00 : !tile.tile<33x1xf32>
    %104 = tile.dot %92, %102, %103 {precision = "ieee"} : (!tile.tile<33x5xf32>, !tile.tile<5x1xf32>, !tile.tile<33x1xf32>) -> !tile.tile<33x1xf32>
    %105 = tile.max %34, %34 : !tile.tile<19x32xf32>
    %106 = tile.constant 17 : i32
    %107 = tile.mul %0, %106 : i32
    %108 = tile.constant 8 : i32
    %109 = tile.mul %0, %108 : i32
    %110 = tile.multiple %109, 8 : (i32) -> i32
    %111 = tile.arange 0 : !tile.tile<16xi32>
    %112 = tile.constant 9 : !tile.tile<16xi32>
    %113 = tile.lt %111, %112 : !tile.tile<16xi32>
    %114 = tile.reshape %113 : (!tile.tile<16xi1>) -> !tile.tile<1x16x1xi1>
    %115 = tile.broadcast %114 : (!tile.tile<1x16x1xi1>) -> !tile.tile<5x16x33xi1>
    %116 = tile.load %a3[%n1, %107, %110] mask %115 {extents = array<i64: 5, 16, 33>} : (!tile.array<?x?x?xbf16, "shape 8 16 =1 strides 16 =1 =1 align 16">, i32, i32, i32, !tile.tile<5x16x33xi1>) -> !tile.tile<5x16x33xbf16>
    %117 = tile.lt %29, %29 : !tile.tile<5xf32>
    %118 = tile.constant -2.000000e+00 : !tile.tile<5xf32>
    %119 = tile.select %117, %29, %118 : !tile.tile<5xf32>
    %120 = tile.constant 0.000000e+00 : !tile.tile<7x33xf32>
    %121 = tile.constant 16 : i32
    %122 = tile.mul %n1, %121 : i32
    %123 = tile.constant 0 : i32
    %124 = tile.constant 16 : i32
    %125 = scf.for %k23 = %123 to %122 step %124 iter_args(%v24 = %120) -> (!tile.tile<7x33xf32>) : i32 {
      %126 = tile.constant 2 : i32
      %127 = tile.floordiv %k23, %126 : i32
      %128 = tile.arange 0 : !tile.tile<7xi32>
      %129 = tile.constant 4 : i32
      %130 = tile.sub %n1, %129 : i32
      %131 = tile.splat %130 : (i32) -> !tile.tile<7xi32>
      %132 = tile.lt %128, %131 : !tile.tile<7xi32>
      %133 = tile.reshape %132 : (!tile.tile<7xi1>) -> !tile.tile<7x1xi1>
      %134 = tile.constant 2.000000e+00 : f32
      %135 = tile.splat %134 : (f32) -> !tile.tile<7x16xf32>
      %136 = tile.constant -1 : i32
      %137 = tile.broadcast %133 : (!tile.tile<7x1xi1>) -> !tile.tile<7x16xi1>
      %138 = tile.load %a2[%127, %136] mask %137 other %135 {extents = array<i64: 7, 16>} : (!tile.array<?x?xf32, "shape 4 =1 strides =0 =0 align 16">, i32, i32, !tile.tile<7x16xi1>, !tile.tile<7x16xf32>) -> !tile.tile<7x16xf32>
      %139 = tile.arange 0 : !tile.tile<16xi32>
      %140 = tile.splat %0 : (i32) -> !tile.tile<16xi32>
      %141 = tile.add %140, %139 : !tile.tile<16xi32>
      %142 = tile.constant 3 : i32
      %143 = tile.mul %n0, %142 : i32
      %144 = tile.multiple %143, 3 : (i32) -> i32
      %145 = tile.arange 0 : !tile.tile<1xi32>
      %146 = tile.splat %144 : (i32) -> !tile.tile<1xi32>
      %147 = tile.add %146, %145 : !tile.tile<1xi32>
      %148 = tile.reshape %141 : (!tile.tile<16xi32>) -> !tile.tile<16x1xi32>
      %149 = tile.constant 0 : !tile.tile<16x1xi32>
      %150 = tile.mul %148, %149 : !tile.tile<16x1xi32>
      %151 = tile.splat %61 : (!tile.ptr<f32>) -> !tile.tile<16x1x!tile.ptr<f32>>
      %152 = tile.pointer_add %151, %150 : (!tile.tile<16x1x!tile.ptr<f32>>, !tile.tile<16x1xi32>) -> !tile.tile<16x1x!tile.ptr<f32>>
      %153 = tile.reshape %147 : (!tile.tile<1xi32>) -> !tile.tile<1x1xi32>
      %154 = tile.constant 0 : !tile.tile<1x1xi32>
      %155 = tile.mul %153, %154 : !tile.tile<1x1xi32>
      %156 = tile.broadcast %155 : (!tile.tile<1x1xi32>) -> !tile.tile<16x1xi32>
      %157 = tile.pointer_add %152, %156 : (!tile.tile<16x1x!tile.ptr<f32>>, !tile.tile<16x1xi32>) -> !tile.tile<16x1x!tile.ptr<f32>>
      %158 = tile.reshape %141 : (!tile.tile<16xi32>) -> !tile.tile<16x1xi32>
      %159 = tile.constant 0 : !tile.tile<16x1xi32>
      %160 = tile.ge %158, %159 : !tile.tile<16x1xi32>
      %161 = tile.reshape %141 : (!tile.tile<16xi32>) -> !tile.tile<16x1xi32>
      %162 = tile.splat %77 : (i32) -> !tile.tile<16x1xi32>
      %163 = tile.lt %161, %162 : !tile.tile<16x1xi32>
      %164 = tile.and %160, %163 : !tile.tile<16x1xi1>
      %165 = tile.reshape %147 : (!tile.tile<1xi32>) -> !tile.tile<1x1xi32>
      %166 = tile.constant 0 : !tile.tile<1x1xi32>
      %167 = tile.ge %165, %166 : !tile.tile<1x1xi32>
      %168 = tile.broadcast %167 : (!tile.tile<1x1xi1>) -> !tile.tile<16x1xi1>
      %169 = tile.and %164, %168 : !tile.tile<16x1xi1>
      %170 = tile.reshape %147 : (!tile.tile<1xi32>) -> !tile.tile<1x1xi32>
      %171 = tile.constant 1 : !tile.tile<1x1xi32>
      %172 = tile.lt %170, %171 : !tile.tile<1x1xi32>
      %173 = tile.broadcast %172 : (!tile.tile<1x1xi1>) -> !tile.tile<16x1xi1>
      %174 = tile.and %169, %173 : !tile.tile<16x1xi1>
      %175 = tile.load_pointers %157 mask %174 : (!tile.tile<16x1x!tile.ptr<f32>>, !tile.tile<16x1xi1>) -> !tile.tile<16x1xf32>
      %176 = tile.constant 0.000000e+00 : !tile.tile<7x1xf32>
      %177 = tile.dot %138, %175, %176 {precision = "ieee"} : (!tile.tile<7x16xf32>, !tile.tile<16x1xf32>, !tile.tile<7x1xf32>) -> !tile.tile<7x1xf32>
      %178 = tile.constant -2.000000e+00 : !tile.tile<5xf32>
      %179 = tile.mod %119, %178 : !tile.tile<5xf32>
      %180 = tile.constant 0 : i32
      %181 = tile.load %a2[%180, %k23] {extents = array<i64: 7, 3>} : (!tile.array<?x?xf32, "shape 4 =1 strides =0 =0 align 16">, i32, i32) -> !tile.tile<7x3xf32>
      %182 = tile.constant 17 : i32
      %183 = tile.mul %n1, %182 : i32
      %184 = tile.load %a4[%k23, %183] {extents = array<i64: 3, 33>} : (!tile.array<?x?xf32, "shape 1 1 strides 1 =1 align 16">, i32, i32) -> !tile.tile<3x33xf32>
      %185 = tile.extract %184 {index = array<i64: 0, 0>} : (!tile.tile<3x33xf32>) -> f32
      %186 = tile.splat %185 : (f32) -> !tile.tile<7x3xf32>
      %187 = tile.mul %181, %186 : !tile.tile<7x3xf32>
      %188 = tile.dot %187, %184, %v24 {precision = "ieee"} : (!tile.tile<7x3xf32>, !tile.tile<3x33xf32>, !tile.tile<7x33xf32>) -> !tile.tile<7x33xf32>
      scf.yield %188 : !tile.tile<7x33xf32>
    } {num_stages = 4 : i64}
    %189 = tile.arange 0 : !tile.tile<32xi32>
    %190 = tile.arange 0 : !tile.tile<13xi32>
    %191 = tile.splat %n1 : (i32) -> !tile.tile<13xi32>
    %192 = tile.add %191, %190 : !tile.tile<13xi32>
    %193 = tile.pointer %a5 : (!tile.array<?x?xi64, "shape 1 =1 strides =0 =0 align 16">) -> !tile.ptr<i64>
    %194 = tile.reshape %189 : (!tile.tile<32xi32>) -> !tile.tile<32x1xi32>
    %195 = tile.constant 0 : !tile.tile<32x1xi32>
    %196 = tile.mul %194, %195 : !tile.tile<32x1xi32>
    %197 = tile.splat %193 : (!tile.ptr<i64>) -> !tile.tile<32x1x!tile.ptr<i64>>
    %198 = tile.pointer_add %197, %196 : (!tile.tile<32x1x!tile.ptr<i64>>, !tile.tile<32x1xi32>) -> !tile.tile<32x1x!tile.ptr<i64>>
    %199 = tile.reshape %192 : (!tile.tile<13xi32>) -> !tile.tile<1x13xi32>
    %200 = tile.constant 0 : !tile.tile<1x13xi32>
    %201 = tile.mul %199, %200 : !tile.tile<1x13xi32>
    %202 = tile.broadcast %198 : (!tile.tile<32x1x!tile.ptr<i64>>) -> !tile.tile<32x13x!tile.ptr<i64>>
    %203 = tile.broadcast %201 : (!tile.tile<1x13xi32>) -> !tile.tile<32x13xi32>
    %204 = tile.pointer_add %202, %203 : (!tile.tile<32x13x!tile.ptr<i64>>, !tile.tile<32x13xi32>) -> !tile.tile<32x13x!tile.ptr<i64>>
    %205 = tile.reshape %189 : (!tile.tile<32xi32>) -> !tile.tile<32x1xi32>
    %206 = tile.constant 0 : !tile.tile<32x1xi32>
    %207 = tile.ge %205, %206 : !tile.tile<32x1xi32>
    %208 = tile.reshape %189 : (!tile.tile<32xi32>) -> !tile.tile<32x1xi32>
    %209 = tile.dim %a5, 0 : (!tile.array<?x?xi64, "shape 1 =1 strides =0 =0 align 16">) -> i32
    %210 = tile.splat %209 : (i32) -> !tile.tile<32x1xi32>
    %211 = tile.lt %208, %210 : !tile.tile<32x1xi32>
    %212 = tile.and %207, %211 : !tile.tile<32x1xi1>
    %213 = tile.reshape %192 : (!tile.tile<13xi32>) -> !tile.tile<1x13xi32>
    %214 = tile.constant 0 : !tile.tile<1x13xi32>
    %215 = tile.ge %213, %214 : !tile.tile<1x13xi32>
    %216 = tile.broadcast %212 : (!tile.tile<32x1xi1>) -> !tile.tile<32x13xi1>
    %217 = tile.broadcast %215 : (!tile.tile<1x13xi1>) -> !tile.tile<32x13xi1>
    %218 = tile.and %216, %217 : !tile.tile<32x13xi1>
    %219 = tile.reshape %192 : (!tile.tile<13xi32>) -> !tile.tile<1x13xi32>
    %220 = tile.constant 1 : !tile.tile<1x13xi32>
    %221 = tile.lt %219, %220 : !tile.tile<1x13xi32>
    %222 = tile.broadcast %221 : (!tile.tile<1x13xi1>) -> !tile.tile<32x13xi1>
    %223 = tile.and %218, %222 : !tile.tile<32x13xi1>
    %224 = tile.load_pointers %204 mask %223 : (!tile.tile<32x13x!tile.ptr<i64>>, !tile.tile<32x13xi1>) -> !tile.tile<32x13xi64>
    %225 = tile.constant 1 : !tile.tile<32x13xi64>
    %226 = tile.shr %224, %225 : !tile.tile<32x13xi64>
    %227 = tile.max %116, %116 : !tile.tile<5x16x33xbf16>
    %228 = tile.constant 0.000000e+00 : !tile.tile<7x33xf32>
    %229 = tile.constant 16 : i32
    %230 = tile.mul %n1, %229 : i32
    %231 = tile.constant 0 : i32
    %232 = tile.constant 16 : i32
    %233 = scf.for %k23_1 = %231 to %230 step %232 iter_args(%v24_1 = %228) -> (!tile.tile<7x33xf32>) : i32 {
      %234 = tile.constant 2 : i32
      %235 = tile.floordiv %k23_1, %234 : i32
      %236 = tile.arange 0 : !tile.tile<7xi32>
      %237 = tile.constant 4 : i32
      %238 = tile.sub %n1, %237 : i32
      %239 = tile.splat %238 : (i32) -> !tile.tile<7xi32>
      %240 = tile.lt %236, %239 : !tile.tile<7xi32>
      %241 = tile.reshape %240 : (!tile.tile<7xi1>) -> !tile.tile<7x1xi1>
      %242 = tile.constant 2.000000e+00 : f32
      %243 = tile.splat %242 : (f32) -> !tile.tile<7x16xf32>
      %244 = tile.constant -1 : i32
      %245 = tile.broadcast %241 : (!tile.tile<7x1xi1>) -> !tile.tile<7x16xi1>
      %246 = tile.load %a2[%235, %244] mask %245 other %243 {extents = array<i64: 7, 16>} : (!tile.array<?x?xf32, "shape 4 =1 strides =0 =0 align 16">, i32, i32, !tile.tile<7x16xi1>, !tile.tile<7x16xf32>) -> !tile.tile<7x16xf32>
      %247 = tile.arange 0 : !tile.tile<16xi32>
      %248 = tile.splat %0 : (i32) -> !tile.tile<16xi32>
      %249 = tile.add %248, %247 : !tile.tile<16xi32>
      %250 = tile.constant 3 : i32
      %251 = tile.mul %n0, %250 : i32
      %252 = tile.multiple %251, 3 : (i32) -> i32
      %253 = tile.arange 0 : !tile.tile<1xi32>
      %254 = tile.splat %252 : (i32) -> !tile.tile<1xi32>
      %255 = tile.add %254, %253 : !tile.tile<1xi32>
      %256 = tile.reshape %249 : (!tile.tile<16xi32>) -> !tile.tile<16x1xi32>
      %257 = tile.constant 0 : !tile.tile<16x1xi32>
      %258 = tile.mul %256, %257 : !tile.tile<16x1xi32>
      %259 = tile.splat %61 : (!tile.ptr<f32>) -> !tile.tile<16x1x!tile.ptr<f32>>
      %260 = tile.pointer_add %259, %258 : (!tile.tile<16x1x!tile.ptr<f32>>, !tile.tile<16x1xi32>) -> !tile.tile<16x1x!tile.ptr<f32>>
      %261 = tile.reshape %255 : (!tile.tile<1xi32>) -> !tile.tile<1x1xi32>
      %262 = tile.constant 0 : !tile.tile<1x1xi32>
      %263 = tile.mul %261, %262 : !tile.tile<1x1xi32>
      %264 = tile.broadcast %263 : (!tile.tile<1x1xi32>) -> !tile.tile<16x1xi32>
      %265 = tile.pointer_add %260, %264 : (!tile.tile<16x1x!tile.ptr<f32>>, !tile.tile<16x1xi32>) -> !tile.tile<16x1x!tile.ptr<f32>>
      %266 = tile.reshape %249 : (!tile.tile<16xi32>) -> !tile.tile<16x1xi32>
      %267 = tile.constant 0 : !tile.tile<16x1xi32>
      %268 = tile.ge %266, %267 : !tile.tile<16x1xi32>
      %269 = tile.reshape %249 : (!tile.tile<16xi32>) -> !tile.tile<16x1xi32>
      %270 = tile.splat %77 : (i32) -> !tile.tile<16x1xi32>
      %271 = tile.lt %269, %270 : !tile.tile<16x1xi32>
      %272 = tile.and %268, %271 : !tile.tile<16x1xi1>
      %273 = tile.reshape %255 : (!tile.tile<1xi32>) -> !tile.tile<1x1xi32>
      %274 = tile.constant 0 : !tile.tile<1x1xi32>
      %275 = tile.ge %273, %274 : !tile.tile<1x1xi32>
      %276 = tile.broadcast %275 : (!tile.tile<1x1xi1>) -> !tile.tile<16x1xi1>
      %277 = tile.and %272, %276 : !tile.tile<16x1xi1>
      %278 = tile.reshape %255 : (!tile.tile<1xi32>) -> !tile.tile<1x1xi32>
      %279 = tile.constant 1 : !tile.tile<1x1xi32>
      %280 = tile.lt %278, %279 : !tile.tile<1x1xi32>
      %281 = tile.broadcast %280 : (!tile.tile<1x1xi1>) -> !tile.tile<16x1xi1>
      %282 = tile.and %277, %281 : !tile.tile<16x1xi1>
      %283 = tile.load_pointers %265 mask %282 : (!tile.tile<16x1x!tile.ptr<f32>>, !tile.tile<16x1xi1>) -> !tile.tile<16x1xf32>
      %284 = tile.constant 0.000000e+00 : !tile.tile<7x1xf32>
      %285 = tile.dot %246, %283, %284 {precision = "ieee"} : (!tile.tile<7x16xf32>, !tile.tile<16x1xf32>, !tile.tile<7x1xf32>) -> !tile.tile<7x1xf32>
      %286 = tile.constant -2.000000e+00 : !tile.tile<5xf32>
      %287 = tile.mod %119, %286 : !tile.tile<5xf32>
      %288 = tile.constant 0 : i32
      %289 = tile.load %a2[%288, %k23_1] {extents = array<i64: 7, 3>} : (!tile.array<?x?xf32, "shape 4 =1 strides =0 =0 align 16">, i32, i32) -> !tile.tile<7x3xf32>
      %290 = tile.constant 17 : i32
      %291 = tile.mul %n1, %290 : i32
      %292 = tile.load %a4[%k23_1, %291] {extents = array<i64: 3, 33>} : (!tile.array<?x?xf32, "shape 1 1 strides 1 =1 align 16">, i32, i32) -> !tile.tile<3x33xf32>
      %293 = tile.extract %292 {index = array<i64: 0, 0>} : (!tile.tile<3x33xf32>) -> f32
      %294 = tile.splat %293 : (f32) -> !tile.tile<7x3xf32>
      %295 = tile.mul %289, %294 : !tile.tile<7x3xf32>
      %296 = tile.dot %295, %292, %v24_1 {precision = "ieee"} : (!tile.tile<7x3xf32>, !tile.tile<3x33xf32>, !tile.tile<7x33xf32>) -> !tile.tile<7x33xf32>
      scf.yield %296 : !tile.tile<7x33xf32>
    } {num_stages = 4 : i64}
    %297 = tile.arange 0 : !tile.tile<32xi32>
    %298 = tile.arange 0 : !tile.tile<13xi32>
    %299 = tile.splat %n1 : (i32) -> !tile.tile<13xi32>
    %300 = tile.add %299, %298 : !tile.tile<13xi32>
    %301 = tile.reshape %297 : (!tile.tile<32xi32>) -> !tile.tile<32x1xi32>
    %302 = tile.constant 0 : !tile.tile<32x1xi32>
    %303 = tile.mul %301, %302 : !tile.tile<32x1xi32>
    %304 = tile.splat %193 : (!tile.ptr<i64>) -> !tile.tile<32x1x!tile.ptr<i64>>
    %305 = tile.pointer_add %304, %303 : (!tile.tile<32x1x!tile.ptr<i64>>, !tile.tile<32x1xi32>) -> !tile.tile<32x1x!tile.ptr<i64>>
    %306 = tile.reshape %300 : (!tile.tile<13xi32>) -> !tile.tile<1x13xi32>
    %307 = tile.constant 0 : !tile.tile<1x13xi32>
    %308 = tile.mul %306, %307 : !tile.tile<1x13xi32>
    %309 = tile.broadcast %305 : (!tile.tile<32x1x!tile.ptr<i64>>) -> !tile.tile<32x13x!tile.ptr<i64>>
    %310 = tile.broadcast %308 : (!tile.tile<1x13xi32>) -> !tile.tile<32x13xi32>
    %311 = tile.pointer_add %309, %310 : (!tile.tile<32x13x!tile.ptr<i64>>, !tile.tile<32x13xi32>) -> !tile.tile<32x13x!tile.ptr<i64>>
    %312 = tile.reshape %297 : (!tile.tile<32xi32>) -> !tile.tile<32x1xi32>
    %313 = tile.constant 0 : !tile.tile<32x1xi32>
    %314 = tile.ge %312, %313 : !tile.tile<32x1xi32>
    %315 = tile.reshape %297 : (!tile.tile<32xi32>) -> !tile.tile<32x1xi32>
    %316 = tile.splat %209 : (i32) -> !tile.tile<32x1xi32>
    %317 = tile.lt %315, %316 : !tile.tile<32x1xi32>
    %318 = tile.and %314, %317 : !tile.tile<32x1xi1>
    %319 = tile.reshape %300 : (!tile.tile<13xi32>) -> !tile.tile<1x13xi32>
    %320 = tile.constant 0 : !tile.tile<1x13xi32>
    %321 = tile.ge %319, %320 : !tile.tile<1x13xi32>
    %322 = tile.broadcast %318 : (!tile.tile<32x1xi1>) -> !tile.tile<32x13xi1>
    %323 = tile.broadcast %321 : (!tile.tile<1x13xi1>) -> !tile.tile<32x13xi1>
    %324 = tile.and %322, %323 : !tile.tile<32x13xi1>
    %325 = tile.reshape %300 : (!tile.tile<13xi32>) -> !tile.tile<1x13xi32>
    %326 = tile.constant 1 : !tile.tile<1x13xi32>
    %327 = tile.lt %325, %326 : !tile.tile<1x13xi32>
    %328 = tile.broadcast %327 : (!tile.tile<1x13xi1>) -> !tile.tile<32x13xi1>
    %329 = tile.and %324, %328 : !tile.tile<32x13xi1>
    %330 = tile.load_pointers %311 mask %329 : (!tile.tile<32x13x!tile.ptr<i64>>, !tile.tile<32x13xi1>) -> !tile.tile<32x13xi64>
    %331 = tile.constant 1 : !tile.tile<32x13xi64>
    %332 = tile.shr %330, %331 : !tile.tile<32x13xi64>
    %333 = tile.max %227, %227 : !tile.tile<5x16x33xbf16>
    %334 = tile.constant 0.000000e+00 : !tile.tile<7x33xf32>
    %335 = tile.constant 16 : i32
    %336 = tile.mul %n1, %335 : i32
    %337 = tile.constant 0 : i32
    %338 = tile.constant 16 : i32
    %339 = scf.for %k23_2 = %337 to %336 step %338 iter_args(%v24_2 = %334) -> (!tile.tile<7x33xf32>) : i32 {
      %340 = tile.constant 2 : i32
      %341 = tile.floordiv %k23_2, %340 : i32
      %342 = tile.arange 0 : !tile.tile<7xi32>
      %343 = tile.constant 4 : i32
      %344 = tile.sub %n1, %343 : i32
      %345 = tile.splat %344 : (i32) -> !tile.tile<7xi32>
      %346 = tile.lt %342, %345 : !tile.tile<7xi32>
      %347 = tile.reshape %346 : (!tile.tile<7xi1>) -> !tile.tile<7x1xi1>
      %348 = tile.constant 2.000000e+00 : f32
      %349 = tile.splat %348 : (f32) -> !tile.tile<7x16xf32>
      %350 = tile.constant -1 : i32
      %351 = tile.broadcast %347 : (!tile.tile<7x1xi1>) -> !tile.tile<7x16xi1>
      %352 = tile.load %a2[%341, %350] mask %351 other %349 {extents = array<i64: 7, 16>} : (!tile.array<?x?xf32, "shape 4 =1 strides =0 =0 align 16">, i32, i32, !tile.tile<7x16xi1>, !tile.tile<7x16xf32>) -> !tile.tile<7x16xf32>
      %353 = tile.arange 0 : !tile.tile<16xi32>
      %354 = tile.splat %0 : (i32) -> !tile.tile<16xi32>
      %355 = tile.add %354, %353 : !tile.tile<16xi32>
      %356 = tile.constant 3 : i32
      %357 = tile.mul %n0, %356 : i32
      %358 = tile.multiple %357, 3 : (i32) -> i32
      %359 = tile.arange 0 : !tile.tile<1xi32>
      %360 = tile.splat %358 : (i32) -> !tile.tile<1xi32>
      %361 = tile.add %360, %359 : !tile.tile<1xi32>
      %362 = tile.reshape %355 : (!tile.tile<16xi32>) -> !tile.tile<16x1xi32>
      %363 = tile.constant 0 : !tile.tile<16x1xi32>
      %364 = tile.mul %362, %363 : !tile.tile<16x1xi32>
      %365 = tile.splat %61 : (!tile.ptr<f32>) -> !tile.tile<16x1x!tile.ptr<f32>>
      %366 = tile.pointer_add %365, %364 : (!tile.tile<16x1x!tile.ptr<f32>>, !tile.tile<16x1xi32>) -> !tile.tile<16x1x!tile.ptr<f32>>
      %367 = tile.reshape %361 : (!tile.tile<1xi32>) -> !tile.tile<1x1xi32>
      %368 = tile.constant 0 : !tile.tile<1x1xi32>
      %369 = tile.mul %367, %368 : !tile.tile<1x1xi32>
      %370 = tile.broadcast %369 : (!tile.tile<1x1xi32>) -> !tile.tile<16x1xi32>
      %371 = tile.pointer_add %366, %370 : (!tile.tile<16x1x!tile.ptr<f32>>, !tile.tile<16x1xi32>) -> !tile.tile<16x1x!tile.ptr<f32>>
      %372 = tile.reshape %355 : (!tile.tile<16xi32>) -> !tile.tile<16x1xi32>
      %373 = tile.constant 0 : !tile.tile<16x1xi32>
      %374 = tile.ge %372, %373 : !tile.tile<16x1xi32>
      %375 = tile.reshape %355 : (!tile.tile<16xi32>) -> !tile.tile<16x1xi32>
      %376 = tile.splat %77 : (i32) -> !tile.tile<16x1xi32>
      %377 = tile.lt %375, %376 : !tile.tile<16x1xi32>
      %378 = tile.and %374, %377 : !tile.tile<16x1xi1>
      %379 = tile.reshape %361 : (!tile.tile<1xi32>) -> !tile.tile<1x1xi32>
      %380 = tile.constant 0 : !tile.tile<1x1xi32>
      %381 = tile.ge %379, %380 : !tile.tile<1x1xi32>
      %382 = tile.broadcast %381 : (!tile.tile<1x1xi1>) -> !tile.tile<16x1xi1>
      %383 = tile.and %378, %382 : !tile.tile<16x1xi1>
      %384 = tile.reshape %361 : (!tile.tile<1xi32>) -> !tile.tile<1x1xi32>
      %385 = tile.constant 1 : !tile.tile<1x1xi32>
      %386 = tile.lt %384, %385 : !tile.tile<1x1xi32>
      %387 = tile.broadcast %386 : (!tile.tile<1x1xi1>) -> !tile.tile<16x1xi1>
      %388 = tile.and %383, %387 : !tile.tile<16x1xi1>
      %389 = tile.load_pointers %371 mask %388 : (!tile.tile<16x1x!tile.ptr<f32>>, !tile.tile<16x1xi1>) -> !tile.tile<16x1xf32>
      %390 = tile.constant 0.000000e+00 : !tile.tile<7x1xf32>
      %391 = tile.dot %352, %389, %390 {precision = "ieee"} : (!tile.tile<7x16xf32>, !tile.tile<16x1xf32>, !tile.tile<7x1xf32>) -> !tile.tile<7x1xf32>
      %392 = tile.constant -2.000000e+00 : !tile.tile<5xf32>
      %393 = tile.mod %119, %392 : !tile.tile<5xf32>
      %394 = tile.constant 0 : i32
      %395 = tile.load %a2[%394, %k23_2] {extents = array<i64: 7, 3>} : (!tile.array<?x?xf32, "shape 4 =1 strides =0 =0 align 16">, i32, i32) -> !tile.tile<7x3xf32>
      %396 = tile.constant 17 : i32
      %397 = tile.mul %n1, %396 : i32
      %398 = tile.load %a4[%k23_2, %397] {extents = array<i64: 3, 33>} : (!tile.array<?x?xf32, "shape 1 1 strides 1 =1 align 16">, i32, i32) -> !tile.tile<3x33xf32>
      %399 = tile.extract %398 {index = array<i64: 0, 0>} : (!tile.tile<3x33xf32>) -> f32
      %400 = tile.splat %399 : (f32) -> !tile.tile<7x3xf32>
      %401 = tile.mul %395, %400 : !tile.tile<7x3xf32>
      %402 = tile.dot %401, %398, %v24_2 {precision = "ieee"} : (!tile.tile<7x3xf32>, !tile.tile<3x33xf32>, !tile.tile<7x33xf32>) -> !tile.tile<7x33xf32>
      scf.yield %402 : !tile.tile<7x33xf32>
    } {num_stages = 4 : i64}
    %403 = tile.arange 0 : !tile.tile<32xi32>
    %404 = tile.arange 0 : !tile.tile<13xi32>
    %405 = tile.splat %n1 : (i32) -> !tile.tile<13xi32>
    %406 = tile.add %405, %404 : !tile.tile<13xi32>
    %407 = tile.reshape %403 : (!tile.tile<32xi32>) -> !tile.tile<32x1xi32>
    %408 = tile.constant 0 : !tile.tile<32x1xi32>
    %409 = tile.mul %407, %408 : !tile.tile<32x1xi32>
    %410 = tile.splat %193 : (!tile.ptr<i64>) -> !tile.tile<32x1x!tile.ptr<i64>>
    %411 = tile.pointer_add %410, %409 : (!tile.tile<32x1x!tile.ptr<i64>>, !tile.tile<32x1xi32>) -> !tile.tile<32x1x!tile.ptr<i64>>
    %412 = tile.reshape %406 : (!tile.tile<13xi32>) -> !tile.tile<1x13xi32>
    %413 = tile.constant 0 : !tile.tile<1x13xi32>
    %414 = tile.mul %412, %413 : !tile.tile<1x13xi32>
    %415 = tile.broadcast %411 : (!tile.tile<32x1x!tile.ptr<i64>>) -> !tile.tile<32x13x!tile.ptr<i64>>
    %416 = tile.broadcast %414 : (!tile.tile<1x13xi32>) -> !tile.tile<32x13xi32>
    %417 = tile.pointer_add %415, %416 : (!tile.tile<32x13x!tile.ptr<i64>>, !tile.tile<32x13xi32>) -> !tile.tile<32x13x!tile.ptr<i64>>
    %418 = tile.reshape %403 : (!tile.tile<32xi32>) -> !tile.tile<32x1xi32>
    %419 = tile.constant 0 : !tile.tile<32x1xi32>
    %420 = tile.ge %418, %419 : !tile.tile<32x1xi32>
    %421 = tile.reshape %403 : (!tile.tile<32xi32>) -> !tile.tile<32x1xi32>
    %422 = tile.splat %209 : (i32) -> !tile.tile<32x1xi32>
    %423 = tile.lt %421, %422 : !tile.tile<32x1xi32>
    %424 = tile.and %420, %423 : !tile.tile<32x1xi1>
    %425 = tile.reshape %406 : (!tile.tile<13xi32>) -> !tile.tile<1x13xi32>
    %426 = tile.constant 0 : !tile.tile<1x13xi32>
    %427 = tile.ge %425, %426 : !tile.tile<1x13xi32>
    %428 = tile.broadcast %424 : (!tile.tile<32x1xi1>) -> !tile.tile<32x13xi1>
    %429 = tile.broadcast %427 : (!tile.tile<1x13xi1>) -> !tile.tile<32x13xi1>
    %430 = tile.and %428, %429 : !tile.tile<32x13xi1>
    %431 = tile.reshape %406 : (!tile.tile<13xi32>) -> !tile.tile<1x13xi32>
    %432 = tile.constant 1 : !tile.tile<1x13xi32>
    %433 = tile.lt %431, %432 : !tile.tile<1x13xi32>
    %434 = tile.broadcast %433 : (!tile.tile<1x13xi1>) -> !tile.tile<32x13xi1>
    %435 = tile.and %430, %434 : !tile.tile<32x13xi1>
    %436 = tile.load_pointers %417 mask %435 : (!tile.tile<32x13x!tile.ptr<i64>>, !tile.tile<32x13xi1>) -> !tile.tile<32x13xi64>
    %437 = tile.constant 1 : !tile.tile<32x13xi64>
    %438 = tile.shr %436, %437 : !tile.tile<32x13xi64>
    %439 = tile.max %333, %333 : !tile.tile<5x16x33xbf16>
    %440 = tile.constant 0.000000e+00 : !tile.tile<7x33xf32>
    %441 = tile.constant 16 : i32
    %442 = tile.mul %n1, %441 : i32
    %443 = tile.constant 0 : i32
    %444 = tile.constant 16 : i32
    %445 = scf.for %k23_3 = %443 to %442 step %444 iter_args(%v24_3 = %440) -> (!tile.tile<7x33xf32>) : i32 {
      %446 = tile.constant 2 : i32
      %447 = tile.floordiv %k23_3, %446 : i32
      %448 = tile.arange 0 : !tile.tile<7xi32>
      %449 = tile.constant 4 : i32
      %450 = tile.sub %n1, %449 : i32
      %451 = tile.splat %450 : (i32) -> !tile.tile<7xi32>
      %452 = tile.lt %448, %451 : !tile.tile<7xi32>
      %453 = tile.reshape %452 : (!tile.tile<7xi1>) -> !tile.tile<7x1xi1>
      %454 = tile.constant 2.000000e+00 : f32
      %455 = tile.splat %454 : (f32) -> !tile.tile<7x16xf32>
      %456 = tile.constant -1 : i32
      %457 = tile.broadcast %453 : (!tile.tile<7x1xi1>) -> !tile.tile<7x16xi1>
      %458 = tile.load %a2[%447, %456] mask %457 other %455 {extents = array<i64: 7, 16>} : (!tile.array<?x?xf32, "shape 4 =1 strides =0 =0 align 16">, i32, i32, !tile.tile<7x16xi1>, !tile.tile<7x16xf32>) -> !tile.tile<7x16xf32>
      %459 = tile.arange 0 : !tile.tile<16xi32>
      %460 = tile.splat %0 : (i32) -> !tile.tile<16xi32>
      %461 = tile.add %460, %459 : !tile.tile<16xi32>
      %462 = tile.constant 3 : i32
      %463 = tile.mul %n0, %462 : i32
      %464 = tile.multiple %463, 3 : (i32) -> i32
      %465 = tile.arange 0 : !tile.tile<1xi32>
      %466 = tile.splat %464 : (i32) -> !tile.tile<1xi32>
      %467 = tile.add %466, %465 : !tile.tile<1xi32>
      %468 = tile.reshape %461 : (!tile.tile<16xi32>) -> !tile.tile<16x1xi32>
      %469 = tile.constant 0 : !tile.tile<16x1xi32>
      %470 = tile.mul %468, %469 : !tile.tile<16x1xi32>
      %471 = tile.splat %61 : (!tile.ptr<f32>) -> !tile.tile<16x1x!tile.ptr<f32>>
      %472 = tile.pointer_add %471, %470 : (!tile.tile<16x1x!tile.ptr<f32>>, !tile.tile<16x1xi32>) -> !tile.tile<16x1x!tile.ptr<f32>>
      %473 = tile.reshape %467 : (!tile.tile<1xi32>) -> !tile.tile<1x1xi32>
      %474 = tile.constant 0 : !tile.tile<1x1xi32>
      %475 = tile.mul %473, %474 : !tile.tile<1x1xi32>
      %476 = tile.broadcast %475 : (!tile.tile<1x1xi32>) -> !tile.tile<16x1xi32>
      %477 = tile.pointer_add %472, %476 : (!tile.tile<16x1x!tile.ptr<f32>>, !tile.tile<16x1xi32>) -> !tile.tile<16x1x!tile.ptr<f32>>
      %478 = tile.reshape %461 : (!tile.tile<16xi32>) -> !tile.tile<16x1xi32>
      %479 = tile.constant 0 : !tile.tile<16x1xi32>
      %480 = tile.ge %478, %479 : !tile.tile<16x1xi32>
      %481 = tile.reshape %461 : (!tile.tile<16xi32>) -> !tile.tile<16x1xi32>
      %482 = tile.splat %77 : (i32) -> !tile.tile<16x1xi32>
      %483 = tile.lt %481, %482 : !tile.tile<16x1xi32>
      %484 = tile.and %480, %483 : !tile.tile<16x1xi1>
      %485 = tile.reshape %467 : (!tile.tile<1xi32>) -> !tile.tile<1x1xi32>
      %486 = tile.constant 0 : !tile.tile<1x1xi32>
      %487 = tile.ge %485, %486 : !tile.tile<1x1xi32>
      %488 = tile.broadcast %487 : (!tile.tile<1x1xi1>) -> !tile.tile<16x1xi1>
      %489 = tile.and %484, %488 : !tile.tile<16x1xi1>
      %490 = tile.reshape %467 : (!tile.tile<1xi32>) -> !tile.tile<1x1xi32>
      %491 = tile.constant 1 : !tile.tile<1x1xi32>
      %492 = tile.lt %490, %491 : !tile.tile<1x1xi32>
      %493 = tile.broadcast %492 : (!tile.tile<1x1xi1>) -> !tile.tile<16x1xi1>
      %494 = tile.and %489, %493 : !tile.tile<16x1xi1>
      %495 = tile.load_pointers %477 mask %494 : (!tile.tile<16x1x!tile.ptr<f32>>, !tile.tile<16x1xi1>) -> !tile.tile<16x1xf32>
      %496 = tile.constant 0.000000e+00 : !tile.tile<7x1xf32>
      %497 = tile.dot %458, %495, %496 {precision = "ieee"} : (!tile.tile<7x16xf32>, !tile.tile<16x1xf32>, !tile.tile<7x1xf32>) -> !tile.tile<7x1xf32>
      %498 = tile.constant -2.000000e+00 : !tile.tile<5xf32>
      %499 = tile.mod %119, %498 : !tile.tile<5xf32>
      %500 = tile.constant 0 : i32
      %501 = tile.load %a2[%500, %k23_3] {extents = array<i64: 7, 3>} : (!tile.array<?x?xf32, "shape 4 =1 strides =0 =0 align 16">, i32, i32) -> !tile.tile<7x3xf32>
      %502 = tile.constant 17 : i32
      %503 = tile.mul %n1, %502 : i32
      %504 = tile.load %a4[%k23_3, %503] {extents = array<i64: 3, 33>} : (!tile.array<?x?xf32, "shape 1 1 strides 1 =1 align 16">, i32, i32) -> !tile.tile<3x33xf32>
      %505 = tile.extract %504 {index = array<i64: 0, 0>} : (!tile.tile<3x33xf32>) -> f32
      %506 = tile.splat %505 : (f32) -> !tile.tile<7x3xf32>
      %507 = tile.mul %501, %506 : !tile.tile<7x3xf32>
      %508 = tile.dot %507, %504, %v24_3 {precision = "ieee"} : (!tile.tile<7x3xf32>, !tile.tile<3x33xf32>, !tile.tile<7x33xf32>) -> !tile.tile<7x33xf32>
      scf.yield %508 : !tile.tile<7x33xf32>
    } {num_stages = 4 : i64}
    %509 = tile.arange 0 : !tile.tile<32xi32>
    %510 = tile.arange 0 : !tile.tile<13xi32>
    %511 = tile.splat %n1 : (i32) -> !tile.tile<13xi32>
    %512 = tile.add %511, %510 : !tile.tile<13xi32>
    %513 = tile.reshape %509 : (!tile.tile<32xi32>) -> !tile.tile<32x1xi32>
    %514 = tile.constant 0 : !tile.tile<32x1xi32>
    %515 = tile.mul %513, %514 : !tile.tile<32x1xi32>
    %516 = tile.splat %193 : (!tile.ptr<i64>) -> !tile.tile<32x1x!tile.ptr<i64>>
    %517 = tile.pointer_add %516, %515 : (!tile.tile<32x1x!tile.ptr<i64>>, !tile.tile<32x1xi32>) -> !tile.tile<32x1x!tile.ptr<i64>>
    %518 = tile.reshape %512 : (!tile.tile<13xi32>) -> !tile.tile<1x13xi32>
    %519 = tile.constant 0 : !tile.tile<1x13xi32>
    %520 = tile.mul %518, %519 : !tile.tile<1x13xi32>
    %521 = tile.broadcast %517 : (!tile.tile<32x1x!tile.ptr<i64>>) -> !tile.tile<32x13x!tile.ptr<i64>>
    %522 = tile.broadcast %520 : (!tile.tile<1x13xi32>) -> !tile.tile<32x13xi32>
    %523 = tile.pointer_add %521, %522 : (!tile.tile<32x13x!tile.ptr<i64>>, !tile.tile<32x13xi32>) -> !tile.tile<32x13x!tile.ptr<i64>>
    %524 = tile.reshape %509 : (!tile.tile<32xi32>) -> !tile.tile<32x1xi32>
    %525 = tile.constant 0 : !tile.tile<32x1xi32>
    %526 = tile.ge %524, %525 : !tile.tile<32x1xi32>
    %527 = tile.reshape %509 : (!tile.tile<32xi32>) -> !tile.tile<32x1xi32>
    %528 = tile.splat %209 : (i32) -> !tile.tile<32x1xi32>
    %529 = tile.lt %527, %528 : !tile.tile<32x1xi32>
    %530 = tile.and %526, %529 : !tile.tile<32x1xi1>
    %531 = tile.reshape %512 : (!tile.tile<13xi32>) -> !tile.tile<1x13xi32>
    %532 = tile.constant 0 : !tile.tile<1x13xi32>
    %533 = tile.ge %531, %532 : !tile.tile<1x13xi32>
    %534 = tile.broadcast %530 : (!tile.tile<32x1xi1>) -> !tile.tile<32x13xi1>
    %535 = tile.broadcast %533 : (!tile.tile<1x13xi1>) -> !tile.tile<32x13xi1>
    %536 = tile.and %534, %535 : !tile.tile<32x13xi1>
    %537 = tile.reshape %512 : (!tile.tile<13xi32>) -> !tile.tile<1x13xi32>
    %538 = tile.constant 1 : !tile.tile<1x13xi32>
    %539 = tile.lt %537, %538 : !tile.tile<1x13xi32>
    %540 = tile.broadcast %539 : (!tile.tile<1x13xi1>) -> !tile.tile<32x13xi1>
    %541 = tile.and %536, %540 : !tile.tile<32x13xi1>
    %542 = tile.load_pointers %523 mask %541 : (!tile.tile<32x13x!tile.ptr<i64>>, !tile.tile<32x13xi1>) -> !tile.tile<32x13xi64>
    %543 = tile.constant 1 : !tile.tile<32x13xi64>
    %544 = tile.shr %542, %543 : !tile.tile<32x13xi64>
    %545 = tile.max %439, %439 : !tile.tile<5x16x33xbf16>
    %546 = tile.constant 3.000000e+00 : !tile.tile<16x19xf32>
    %547 = tile.mod %4, %546 : !tile.tile<16x19xf32>
    %548 = tile.constant 3.000000e+00 : !tile.tile<16x19xf32>
    %549 = tile.add %547, %548 : !tile.tile<16x19xf32>
    %550 = tile.constant 0 : i32
    tile.store %1[%550] %119 {extents = array<i64: 5>} : (!tile.array<?xf32, "shape 1 strides =1 align 4">, i32, !tile.tile<5xf32>)
    %551 = tile.constant 32 : i32
    %552 = tile.mul %n0, %551 : i32
    tile.store %2[%552] %117 {extents = array<i64: 5>} : (!tile.array<?xi1, "shape 1 strides =1 align 1">, i32, !tile.tile<5xi1>)
    %553 = tile.constant 0 : i32
    %554 = tile.constant 0 : i32
    tile.store %3[%553, %554] %549 {extents = array<i64: 16, 19>} : (!tile.array<?x?xf32, "shape 1 1 strides 1 =1 align 4">, i32, i32, !tile.tile<16x19xf32>)
    tile.return
  }
}
