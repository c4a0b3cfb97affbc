// the simulator took a slice that begins inside a word of shared memory for one that begins with it (seed 60002718)
builtin.module {
  tile.kernel @kernel(%a0: !tile.array<?x?x?xbf16>, %o5: !tile.array<?x?x?x?xbf16>, %n0: i32, %n1: i32) {level = 0 : i64, argument_names = ["a0", "o5", "n0", "n1"]} {
    %0 = tile.constant 0 : i32
    %1 = tile.view %o5[%0] {kinds = ["index", "all", "all", "all"]} : (!tile.array<?x?x?x?xbf16>, i32) -> !tile.array<?x?x?xbf16>
    %2 = tile.constant 0 : i32
    %3 = tile.load %a0[%2, %n1, %n0] {extents = array<i64: 2, 19, 13>} : (!tile.array<?x?x?xbf16>, i32, i32, i32) -> !tile.tile<2x19x13xbf16>
    %4 = tile.slice %3 {offsets = array<i64: 0, 17, 0>} : (!tile.tile<2x19x13xbf16>) -> !tile.tile<2x2x13xbf16>
    %5 = tile.constant 0 : i32
    %6 = tile.constant 0 : i32
    tile.store %1[%0, %5, %6] %4 {extents = array<i64: 2, 2, 13>} : (!tile.array<?x?x?xbf16>, i32, i32, i32, !tile.tile<2x2x13xbf16>)
    tile.return
  }
}
