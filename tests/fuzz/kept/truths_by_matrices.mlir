// emit: ldmatrix into predicates, for a read of truth values
builtin.module {
  tile.kernel @kernel(%a5: !tile.array<?x?xf8E4M3FN>, %o8: !tile.array<?x?x?xf8E4M3FN>) {level = 0 : i64, argument_names = ["a5", "o8"]} {
    %0 = tile.program_id 0 : i32
    %1 = tile.view %o8[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xf8E4M3FN>, i32) -> !tile.array<?x?xf8E4M3FN, "shape 1 16 strides 16 =1 align 16">
    %2 = tile.constant true : !tile.tile<2x16xi1>
    %3 = tile.reduce all[%2] {axis = 0 : i64} : (!tile.tile<2x16xi1>) -> !tile.tile<16xi1>
    %4 = tile.reshape %3 : (!tile.tile<16xi1>) -> !tile.tile<1x16xi1>
    %5 = tile.pointer %a5 : (!tile.array<?x?xf8E4M3FN>) -> !tile.ptr<f8E4M3FN>
    %6 = tile.splat %5 : (!tile.ptr<f8E4M3FN>) -> !tile.tile<1x1x!tile.ptr<f8E4M3FN>>
    %7 = tile.broadcast %6 : (!tile.tile<1x1x!tile.ptr<f8E4M3FN>>) -> !tile.tile<1x16x!tile.ptr<f8E4M3FN>>
    %8 = tile.load_pointers %7 : (!tile.tile<1x16x!tile.ptr<f8E4M3FN>>) -> !tile.tile<1x16xf8E4M3FN>
    %9 = tile.constant 1.000000e+00 : !tile.tile<1x16xf8E4M3FN>
    %10 = tile.select %4, %8, %9 : !tile.tile<1x16xf8E4M3FN>
    %11 = tile.constant 0 : i32
    %12 = tile.constant 0 : i32
    tile.store %1[%11, %12] %10 {extents = array<i64: 1, 16>} : (!tile.array<?x?xf8E4M3FN, "shape 1 16 strides 16 =1 align 16">, i32, i32, !tile.tile<1x16xf8E4M3FN>)
    tile.return
  }
}
