// A transpose in registers of a tile of fewer elements of 64 bits than threads cut its vectors down to nothing.
builtin.module {
  tile.kernel @kernel(%a: !tile.array<?x?xi64>, %o: !tile.array<?x?xi64>) {level = 0 : i64, argument_names = ["a", "o"]} {
    %0 = tile.constant 0 : i32
    %1 = tile.load %a[%0, %0] {extents = array<i64: 19, 3>} : (!tile.array<?x?xi64>, i32, i32) -> !tile.tile<19x3xi64>
    %2 = tile.transpose %1 {permutation = array<i64: 1, 0>} : (!tile.tile<19x3xi64>) -> !tile.tile<3x19xi64>
    tile.store %o[%0, %0] %2 {extents = array<i64: 3, 19>} : (!tile.array<?x?xi64>, i32, i32, !tile.tile<3x19xi64>)
    tile.return
  }
}
