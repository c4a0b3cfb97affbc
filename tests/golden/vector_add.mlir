// out = x + y, 1024 elements a program: 4 warps, 8 neighbours a thread (16-byte accesses where the facts allow them).
builtin.module {
  tile.kernel @vector_add(%x: !tile.array<?xf32, "strides =1 align 16">, %y: !tile.array<?xf32, "strides =1 align 16">,
                          %out: !tile.array<?xf32, "strides =1 align 16">, %n_argument: i32)
      {warps = 4 : i64, level = 4 : i64, target = "sm_80"} {
    %n = tile.multiple %n_argument, 16 : (i32) -> i32
    %p = tile.program_id 0 : i32
    %block = tile.constant 1024 : i32
    %start = tile.mul %p, %block : i32
    %r = tile.arange 0 : !tile.tile<1024xi32, "blocked 1024 vector 4 warps 4">
    %s = tile.splat %start : (i32) -> !tile.tile<1024xi32, "blocked 1024 vector 4 warps 4">
    %i = tile.add %s, %r : !tile.tile<1024xi32, "blocked 1024 vector 4 warps 4">
    %ns = tile.splat %n : (i32) -> !tile.tile<1024xi32, "blocked 1024 vector 4 warps 4">
    %inside = tile.lt %i, %ns : !tile.tile<1024xi32, "blocked 1024 vector 4 warps 4">
    %xp = tile.pointer %x : (!tile.array<?xf32, "strides =1 align 16">) -> !tile.ptr<f32>
    %xs = tile.splat %xp : (!tile.ptr<f32>) -> !tile.tile<1024x!tile.ptr<f32>, "blocked 1024 vector 4 warps 4">
    %xi = tile.pointer_add %xs, %i : (!tile.tile<1024x!tile.ptr<f32>, "blocked 1024 vector 4 warps 4">, !tile.tile<1024xi32, "blocked 1024 vector 4 warps 4">)
        -> !tile.tile<1024x!tile.ptr<f32>, "blocked 1024 vector 4 warps 4">
    %a = tile.load_pointers %xi mask %inside : (!tile.tile<1024x!tile.ptr<f32>, "blocked 1024 vector 4 warps 4">, !tile.tile<1024xi1, "blocked 1024 vector 4 warps 4">)
        -> !tile.tile<1024xf32, "blocked 1024 vector 4 warps 4">
    %yp = tile.pointer %y : (!tile.array<?xf32, "strides =1 align 16">) -> !tile.ptr<f32>
    %ys = tile.splat %yp : (!tile.ptr<f32>) -> !tile.tile<1024x!tile.ptr<f32>, "blocked 1024 vector 4 warps 4">
    %yi = tile.pointer_add %ys, %i : (!tile.tile<1024x!tile.ptr<f32>, "blocked 1024 vector 4 warps 4">, !tile.tile<1024xi32, "blocked 1024 vector 4 warps 4">)
        -> !tile.tile<1024x!tile.ptr<f32>, "blocked 1024 vector 4 warps 4">
    %b = tile.load_pointers %yi mask %inside : (!tile.tile<1024x!tile.ptr<f32>, "blocked 1024 vector 4 warps 4">, !tile.tile<1024xi1, "blocked 1024 vector 4 warps 4">)
        -> !tile.tile<1024xf32, "blocked 1024 vector 4 warps 4">
    %c = tile.add %a, %b : !tile.tile<1024xf32, "blocked 1024 vector 4 warps 4">
    %op = tile.pointer %out : (!tile.array<?xf32, "strides =1 align 16">) -> !tile.ptr<f32>
    %os = tile.splat %op : (!tile.ptr<f32>) -> !tile.tile<1024x!tile.ptr<f32>, "blocked 1024 vector 4 warps 4">
    %oi = tile.pointer_add %os, %i : (!tile.tile<1024x!tile.ptr<f32>, "blocked 1024 vector 4 warps 4">, !tile.tile<1024xi32, "blocked 1024 vector 4 warps 4">)
        -> !tile.tile<1024x!tile.ptr<f32>, "blocked 1024 vector 4 warps 4">
    tile.store_pointers %oi, %c mask %inside : (!tile.tile<1024x!tile.ptr<f32>, "blocked 1024 vector 4 warps 4">, !tile.tile<1024xf32, "blocked 1024 vector 4 warps 4">,
        !tile.tile<1024xi1, "blocked 1024 vector 4 warps 4">)
    tile.return
  }
}
