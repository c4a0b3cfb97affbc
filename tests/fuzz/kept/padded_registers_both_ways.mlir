// a block that may lie inside its array or not is loaded in one of two ways; registers behind the tile's end were written in neither (seed 1014547)
builtin.module {
  tile.kernel @kernel(%a: !tile.array<?x?xi8>, %b: !tile.array<?x?xi8>, %c: !tile.array<?x?xi32, "shape 1 1 strides 2 =1 align 16">, %o: !tile.array<?x?xi32>) {level = 0 : i64, argument_names = ["a", "b", "c", "o"]} {
    %0 = tile.constant 0 : i32
    %1 = tile.constant 6 : i32
    %p = tile.program_id 0 : i32
    %n = tile.constant 48 : i32
    %r = tile.mul %p, %n : i32
    %x = tile.load %a[%r, %0] {extents = array<i64: 8, 32>} : (!tile.array<?x?xi8>, i32, i32) -> !tile.tile<8x32xi8>
    %y = tile.load %b[%0, %0] {extents = array<i64: 32, 48>} : (!tile.array<?x?xi8>, i32, i32) -> !tile.tile<32x48xi8>
    %z = tile.load %c[%r, %1] {extents = array<i64: 8, 48>} : (!tile.array<?x?xi32, "shape 1 1 strides 2 =1 align 16">, i32, i32) -> !tile.tile<8x48xi32>
    %d = tile.dot %x, %y, %z {precision = "ieee"} : (!tile.tile<8x32xi8>, !tile.tile<32x48xi8>, !tile.tile<8x48xi32>) -> !tile.tile<8x48xi32>
    tile.store %o[%r, %0] %d {extents = array<i64: 8, 48>} : (!tile.array<?x?xi32>, i32, i32, !tile.tile<8x48xi32>)
    tile.return
  }
}
