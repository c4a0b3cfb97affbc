// of an element that many threads hold one stores and all load: a barrier is between them (seeds 1009106, 1010243)
builtin.module {
  tile.kernel @kernel(%w1: !tile.array<?x?x?xf32>, %o4: !tile.array<?x?x?xi1>, %n0: i32) {level = 0 : i64, argument_names = ["w1", "o4", "n0"]} {
    %0 = tile.program_id 0 : i32
    %1 = tile.view %w1[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xf32>, i32) -> !tile.array<?x?xf32>
    %2 = tile.view %o4[%0] {kinds = ["index", "all", "all"]} : (!tile.array<?x?x?xi1>, i32) -> !tile.array<?x?xi1>
    %3 = tile.constant 1.000000e+00 : !tile.tile<1x1xf32>
    tile.store %1[%0, %0] %3 {extents = array<i64: 1, 1>} : (!tile.array<?x?xf32>, i32, i32, !tile.tile<1x1xf32>)
    %4 = tile.load %1[%0, %0] {extents = array<i64: 1, 1>} : (!tile.array<?x?xf32>, i32, i32) -> !tile.tile<1x1xf32>
    %5 = tile.eq %3, %4 : !tile.tile<1x1xf32>
    %6 = tile.constant 0 : i32
    tile.store %2[%n0, %6] %5 {extents = array<i64: 1, 1>} : (!tile.array<?x?xi1>, i32, i32, !tile.tile<1x1xi1>)
    tile.return
  }
}
