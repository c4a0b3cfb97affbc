// emit: the digits of 2x13 count to 26, but did not divide among the axes of 13x2 one by one
builtin.module {
  tile.kernel @kernel(%a4: !tile.array<?x?xf32>, %o6: !tile.array<?x?x?xf32>, %n0: i32) {level = 0 : i64, argument_names = ["a4", "o6", "n0"]} {
    %0 = tile.constant 0 : i32
    %1 = tile.view %o6[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xf32>, i32) -> !tile.array<?x?xf32>
    %2 = tile.constant 0 : i32
    %3 = tile.load %a4[%n0, %2] {extents = array<i64: 2, 13>} : (!tile.array<?x?xf32>, i32, i32) -> !tile.tile<2x13xf32>
    %4 = tile.reshape %3 : (!tile.tile<2x13xf32>) -> !tile.tile<13x2xf32>
    %5 = tile.constant 0 : i32
    %6 = tile.constant 0 : i32
    tile.store %1[%5, %6] %4 {extents = array<i64: 13, 2>} : (!tile.array<?x?xf32>, i32, i32, !tile.tile<13x2xf32>)
    tile.return
  }
}
