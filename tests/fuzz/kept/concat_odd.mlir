// select-layouts: threads stood along the axis of a concatenation of odd extents
builtin.module {
  tile.kernel @kernel(%o4: !tile.array<?x?x?xf32>) {level = 0 : i64, argument_names = ["o4"]} {
    %0 = tile.program_id 0 : i32
    %1 = tile.view %o4[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xf32>, i32) -> !tile.array<?x?xf32>
    %2 = tile.constant 1.000000e+00 : !tile.tile<17x17xf32>
    %3 = tile.concat[%2, %2] {axis = 1 : i64} : (!tile.tile<17x17xf32>, !tile.tile<17x17xf32>) -> !tile.tile<17x34xf32>
    %4 = tile.constant 0 : i32
    tile.store %1[%4, %4] %3 {extents = array<i64: 17, 34>} : (!tile.array<?x?xf32>, i32, i32, !tile.tile<17x34xf32>)
    tile.return
  }
}
