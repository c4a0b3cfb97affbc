"""Productions whose tiles no registers or no shared memory holds, so that passes cut them in parts:
long rows, deep dots, large results. Each reads what it, or a statement before it, writes.
"""

from __future__ import annotations

from tkc.fuzz.grammar import ArraySpec, Tile
from tkc.fuzz.memory_productions import MOST_OWN, MemoryWriter

ROW_EXTENTS = (1024, 4096, 8192)
K_EXTENTS = (512, 1024, 2048)
RESULT_EXTENTS = (128, 256)
MOST_SUMMED = 1 << 17  # the greatest sum of a row


class LargeWriter(MemoryWriter):
    """Writes statements with large tiles."""

    def _long_row(self, depth: int) -> None:
        """A row is read, something is known of all of it, and it is written again."""
        n, dtype = self.pick(ROW_EXTENTS), self.pick(("float32", "float32", "int32"))
        a = self._own_of(dtype, (1, n))
        x = self._whole(a)
        total = self.let(f"tkc.sum({x.name}, axis=1)", dtype, (1,), MOST_SUMMED)
        most = self.let(f"tkc.max({x.name}, axis=1)", dtype, (1,), MOST_OWN)
        few = self.small(self.pick((total, most)), 4)
        if self.chance(0.4):
            self._overwrite_some(a)
        text = self.pick(
            (
                f"{x.name} - {few.name}[:, None]",
                f"tkc.where({x.name} > {few.name}[:, None], {few.name}[:, None], {x.name})",
            )
        )
        y = self.small(self.let(text, dtype, (1, n), MOST_OWN + 4), MOST_OWN)
        place = self.pick(("0", "0", "1", "16"))
        self.line(f"tkc.store({self.other_name(a).name}p, (0, {place}), {y.name})")
        if self.chance(0.5):
            z = self._whole(a)
            self.let(f"tkc.sum({z.name}, axis=1)", dtype, (1,), MOST_SUMMED)

    def _own_of(self, dtype: str, shape: tuple[int, ...]) -> ArraySpec:
        """An array of a program's own with this shape."""
        for a in self.arrays:
            if a.name[0] == "w" and a.dtype == dtype and a.shape[1:] == shape:
                return a
        return self.own("w", dtype, shape)

    def _whole(self, a: ArraySpec) -> Tile:
        """All of a program's part of an array, or of another argument that shares its memory."""
        zeros = ", ".join("0" for _ in a.shape[1:])
        text = f"tkc.load({self.other_name(a).name}p, ({zeros}), {a.shape[1:]})"
        return self.let(text, a.dtype, a.shape[1:], MOST_OWN)

    def _overwrite_some(self, a: ArraySpec) -> None:
        """Writes a small tile somewhere into an array."""
        shape = (min(a.shape[1], 16), 16)
        t = self.small(self.new(shape, a.dtype), MOST_OWN)
        name = self.other_name(a).name
        self.line(f"tkc.store({name}p, ({self.pick(('0', self.index()))}, 0), {t.name})")

    def _deep_dot(self, depth: int) -> None:
        """A dot whose operands no shared memory holds, with a write between its load and itself."""
        m, n, k = self.pick((16, 32, 64)), self.pick((8, 16, 32)), self.pick(K_EXTENTS)
        dtype = self.pick(("float16", "bfloat16", "float32"))
        a = self._own_of(dtype, (m, k))
        b = ArraySpec(f"a{len(self.arrays)}", dtype, (k, n), bound=2)
        self.arrays.append(b)
        x = self._whole(a)
        y = self.let(f"tkc.load({b.name}, (0, 0), {b.shape})", dtype, (k, n), 2)
        if self.chance(0.6):
            self._overwrite_some(a)
        text = f"tkc.dot({x.name}, {y.name})"
        d = self.small(self.let(text, "float32", (m, n), MOST_OWN * 2 * k), 4)
        if self.chance(0.5):
            t = self.to(d, dtype)
            self.line(f"tkc.store({self.other_name(a).name}p, (0, 0), {t.name})")

    def _large_result(self, depth: int) -> None:
        """A dot whose result no registers hold, computed of the array that it is stored to."""
        m, n = self.pick(RESULT_EXTENTS), self.pick(RESULT_EXTENTS)
        k, dtype = self.pick((16, 32)), self.pick(("float16", "bfloat16"))
        a = self._own_of("float32", (m, n))
        c, bound = self._whole(a), MOST_OWN + 16 * k
        x = self.small(self.to(self.block((m, k), dtype), dtype), 4)
        y = self.small(self.to(self.block((k, n), dtype), dtype), 4)
        d = self.let(f"tkc.dot({x.name}, {y.name}, {c.name})", "float32", (m, n), bound)
        if self.chance(0.3):
            self._overwrite_some(a)
        small = self.small(d, MOST_OWN)
        place = self.pick(("0, 0", "0, 0", "0, 8", "1, 0"))
        self.line(f"tkc.store({self.other_name(a).name}p, ({place}), {small.name})")
