// The CPU kept a tile of bytes as base + step per lane when it widened them: 255, 0 became 255, 256.
builtin.module {
  tile.kernel @kernel(%o: !tile.array<?xui16>) {level = 0 : i64, argument_names = ["o"]} {
    %0 = tile.constant 0 : i32
    %1 = tile.arange -2 : !tile.tile<3xi32>
    %2 = tile.cast %1 : !tile.tile<3xi32> to !tile.tile<3xui8>
    %3 = tile.slice %2 {offsets = array<i64: 1>} : (!tile.tile<3xui8>) -> !tile.tile<2xui8>
    %4 = tile.cast %3 : !tile.tile<2xui8> to !tile.tile<2xui16>
    tile.store %o[%0] %4 {extents = array<i64: 2>} : (!tile.array<?xui16>, i32, !tile.tile<2xui16>)
    tile.return
  }
}
