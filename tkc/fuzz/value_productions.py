"""Productions that compute with tiles: element by element, shapes, sums, sorts, calls."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tkc.fuzz.grammar import INTEGERS, WHOLE, Tile, is_float
from tkc.fuzz.writer import SourceWriter, along

COMPARE = ("<", "<=", ">", ">=", "==", "!=")
LONGEST_SORT = 64  # elements
MOST_JOINED = 2048  # elements of each of two tiles

# A function of the host as a compile-time argument: its definition, an expression of it, and a
# bound of the result for one of the argument. {c} is a number.
FUNCTIONS: tuple[tuple[str, str, Callable[[int, int], int]], ...] = (
    ("def {f}(v):\n    return v + {c}\n", "{f}", lambda bound, c: bound + c),
    ("{f} = lambda v: tkc.maximum(v, {c})\n", "{f}", lambda bound, c: max(bound, c)),
    (
        "def {f}(c):\n    return lambda v: v * c\n",
        "{f}({c})",
        lambda bound, c: bound * max(c, 1),
    ),
    (
        "class {f}:\n"
        "    def __init__(self, c):\n        self.c = c\n\n"
        "    def __call__(self, v):\n        return tkc.minimum(v, self.c)\n",
        "{f}({c})",
        lambda bound, c: max(bound, c),
    ),
)


class ValueWriter(SourceWriter):
    """Writes what computes with tiles."""

    def partner(self, t: Tile) -> tuple[str, int]:
        """A second operand: of the same shape, one that broadcasts, or a number."""
        r = self.random.random()
        if r < 0.2 and t.dtype != "bool_":
            n = self.random.randint(0 if t.dtype.startswith("u") else -3, 4)
            return str(n), abs(n)
        if r < 0.4 and len(t.shape) > 1:
            axis = self.random.randrange(len(t.shape))
            u = self.small(self.tile((t.shape[axis],), t.dtype), 8)
            return f"{u.name}[{along(axis, len(t.shape))}]", u.bound
        u = self.small(self.tile(t.shape, t.dtype), 16)
        return u.name, u.bound

    def _binary(self, depth: int) -> None:
        t = self.tile()
        root = int(WHOLE[t.dtype] ** 0.5) if is_float(t.dtype) else 1 << 60
        t = self.small(t, min(root - 1, 1000)) if is_float(t.dtype) else t
        other, bound = self.partner(t)
        if is_float(t.dtype) and bound > root:
            return
        of_integers = ("&", "|", "^", "//", "%", "<<", ">>")
        kind = self.pick(
            (
                *("+", "-", "*", "max", "min", "fmax", "fmin", "rem_trunc"),
                *(("%", "//") if is_float(t.dtype) else (*of_integers, "div_trunc")),
            )
        )
        text = f"{t.name} {kind} {other}"
        match kind:
            case "+" | "-":
                most = t.bound + bound
            case "*":
                most = t.bound * max(bound, 1)
            case "max" | "min":
                text = f"tkc.{kind}imum({t.name}, {other})"
                most = max(t.bound, bound)
            case "fmax" | "fmin":
                text, most = f"tkc.{kind}({t.name}, {other})", max(t.bound, bound)
            case "rem_trunc" | "div_trunc":
                text = f"tkc.{kind}({t.name}, {self._divisor(t.dtype)})"
                most = max(t.bound, 7)
            case "&" | "|" | "^":
                most = 2 * max(t.bound, bound)
            case "//" | "%":
                text = f"{t.name} {kind} {self._divisor(t.dtype)}"
                most = max(t.bound, 7)
            case _:
                text = f"{t.name} {kind} {self.random.randint(0, 3)}"
                most = t.bound * 8
        self.let(text, t.dtype, t.shape, most)

    def _hash(self) -> str:
        """The name of a number of the program that wraps, though each of its factors is small."""
        text, h = "p0", self.fresh("h")
        for _ in range(8):
            text = f"({text}) * {self.pick((29, 31, 37))} + p0"
        self.line(f"{h} = {text}")
        return h

    def hashed_masks(self) -> None:
        """Loads by pointers in a loop, under masks by a number that wraps, of which no address is
        made, from below or above.
        """
        h, (n,), a = self._hash(), self.shape(1), self.input(1, "float32")
        total, i, at = self.fresh("t"), self.fresh("i"), self.fresh("r")
        test = self.pick(("{h} + {i} + {r} >= 0", "{r} < {h} - {i}", "{h} - {r} <= 7"))
        self.line(f"{at}, {total} = tkc.arange({n}), tkc.zeros(({n},), tkc.float32)")
        self.line(f"for {i} in tkc.range(0, 3):")
        mask = f"({test.format(h=h, i=i, r=at)}) & ({at} + {i} < {a.name}.shape[0])"
        place = f"{a.name}.ptr + ({at} + {i}) * {a.name}.strides[0]"
        read = f"tkc.load({place}, mask={mask}, other=1.0).to(tkc.float32)"
        self.line(f"    {total} = {total} + {read}")
        self.let(total, "float32", (n,), 3 * max(a.bound, 1))

    def hashes(self) -> None:
        """A number that wraps: its sign and its remainder go to a tile."""
        h, t = self._hash(), self.tile(None, "int32")
        text = f"{t.name} + {h} % 97 - tkc.where({h} < 0, 1, 0)"
        self.let(text, t.dtype, t.shape, t.bound + 97)

    def _divisor(self, dtype: str) -> int:
        above_zero = dtype.startswith(("u", "float8"))
        return self.pick((1, 2, 3, 4, 7, 8) if above_zero else (1, 2, 3, 4, 7, -2, -3))

    def truth(self, shape: tuple[int, ...] | None = None) -> Tile:
        """A tile of truth values."""
        found = [
            v for v in self.pool if v.dtype == "bool_" and v.shape and shape in (None, v.shape)
        ]
        if found and self.chance(0.6):
            return self.pick(found)
        t = self.tile(shape)
        other, _ = self.partner(t)
        return self.let(f"{t.name} {self.pick(COMPARE)} {other}", "bool_", t.shape, 1)

    def _compare(self, depth: int) -> None:
        c = self.truth()
        if self.chance(0.4):
            self.let(f"{c.name} {self.pick('&|^')} {self.truth(c.shape).name}", "bool_", c.shape, 1)
        elif self.chance(0.3):
            self.let(f"~{c.name}", "bool_", c.shape, 1)

    def _where(self, depth: int) -> None:
        c = self.truth()
        a = self.tile(c.shape)
        b, bound = self.partner(a)
        self.let(f"tkc.where({c.name}, {a.name}, {b})", a.dtype, a.shape, max(a.bound, bound))

    def _unary(self, depth: int) -> None:
        t = self.tile()
        if t.dtype.startswith("u"):
            self.let(f"~{t.name}", t.dtype, t.shape, WHOLE[t.dtype])
            return
        texts = ["-{0}", "tkc.abs({0})"]
        if t.dtype == "float32":
            texts += ["tkc.floor({0})", "tkc.round({0})", "tkc.fma({0}, 1, 2)"]
        if not is_float(t.dtype):
            texts += ["~{0}"]
        text = self.pick(texts)
        if is_float(t.dtype):
            t = self.small(t, WHOLE[t.dtype] // 4)
        self.let(text.format(t.name), t.dtype, t.shape, t.bound + 2)

    def _cast(self, depth: int) -> None:
        self.to(self.tile(), self.pick((self.dtype(), self.dtype(), self.pick(INTEGERS))))

    # ----------------------------------------------------------------------------------------------
    def _call(self, depth: int) -> None:
        """A function that is a compile-time argument, or a number that the host holds."""
        c, t = self.random.randint(0, 4), self.small(self.tile(), 2)
        if self.chance(0.4):
            holder = self.fresh("h")
            self.definitions.append(
                f"import types\n\n{holder} = types.SimpleNamespace(x={c}, table={{'x': {c}}})\n"
            )
            read = self.pick((f"{holder}.x", f"{holder}.table['x']"))
            self.let(f"{t.name} + {read}", t.dtype, t.shape, t.bound + c)
            return
        definition, expression, bound = self.pick(FUNCTIONS)
        name, parameter = self.fresh("f"), self.fresh("F")
        self.definitions.append(definition.format(f=name, c=c))
        self.constants[parameter] = expression.format(f=name, c=c)
        self.let(f"{parameter}({t.name})", t.dtype, t.shape, bound(t.bound, c))

    # ----------------------------------------------------------------------------------------------
    def _shape(self, depth: int) -> None:
        """One of the operations that only move elements, where it fits a tile."""
        t = self.tile()
        axis = self.random.randrange(len(t.shape))
        forms = (
            self._transposed,
            self._permuted,
            self._flipped,
            self._reshaped,
            self._sliced,
            self._element,
            self._concatenated,
            self._interleaved,
            self._repeated,
            self._first_element,
            self._picked,
        )
        if not self.pick(forms)(t, axis):
            self._first_element(t, axis)

    def _moved(self, t: Tile, text: str, shape: tuple[int, ...], bound: int = 0) -> bool:
        self.let(text, t.dtype, shape, max(t.bound, bound))
        return True

    def _transposed(self, t: Tile, axis: int) -> bool:
        if len(t.shape) < 2:
            return False
        *outer, m, n = t.shape
        return self._moved(t, f"{t.name}.T", (*outer, n, m))

    def _permuted(self, t: Tile, axis: int) -> bool:
        order = self.random.sample(range(len(t.shape)), len(t.shape))
        shape = tuple(t.shape[i] for i in order)
        return self._moved(t, f"tkc.permute({t.name}, {order})", shape)

    def _flipped(self, t: Tile, axis: int) -> bool:
        return self._moved(t, f"tkc.flip({t.name}, axis={axis})", t.shape)

    def _picked(self, t: Tile, axis: int) -> bool:
        """Places that are loaded, or computed, some of them outside."""
        if prod(t.shape) > MOST_JOINED:
            return False
        places = self.tile(t.shape, self.pick(("int32", "int8", "uint8")))
        text = f"tkc.gather({t.name}, {places.name}, axis={axis})"
        return self._moved(t, text, t.shape)

    def _reshaped(self, t: Tile, axis: int) -> bool:
        size = prod(t.shape)
        first = self.pick([d for d in range(1, size + 1) if size % d == 0])
        shape = (first, size // first)
        return self._moved(t, f"{t.name}.reshape{shape}", shape)

    def _sliced(self, t: Tile, axis: int) -> bool:
        n = t.shape[axis]
        low, step = self.random.randrange(n), self.pick((1, 1, 2, 3))
        high = self.random.randint(low + 1, n)
        text = f"{t.name}[{along(axis, len(t.shape), f'{low}:{high}:{step}', ':')}]"
        return self._moved(t, text, _with(t.shape, axis, len(range(low, high, step))))

    def _element(self, t: Tile, axis: int) -> bool:
        if len(t.shape) < 2:
            return False
        n = t.shape[axis]
        text = f"{t.name}[{along(axis, len(t.shape), str(self.random.randrange(-n, n)), ':')}]"
        return self._moved(t, text, t.shape[:axis] + t.shape[axis + 1 :])

    def _concatenated(self, t: Tile, axis: int) -> bool:
        if prod(t.shape) > MOST_JOINED:
            return False
        fitting = [
            v.shape[axis]
            for v in self.pool
            if len(v.shape) == len(t.shape) and _with(v.shape, axis, 1) == _with(t.shape, axis, 1)
        ]
        u = self.tile(_with(t.shape, axis, self.pick(fitting or [t.shape[axis]])), t.dtype)
        if prod(u.shape) > MOST_JOINED:
            return True
        shape = _with(t.shape, axis, t.shape[axis] + u.shape[axis])
        return self._moved(t, f"tkc.cat({t.name}, {u.name}, axis={axis})", shape, u.bound)

    def _interleaved(self, t: Tile, axis: int) -> bool:
        if prod(t.shape) > MOST_JOINED:
            return False
        u = self.tile(t.shape, t.dtype)
        *outer, last = t.shape
        if self.chance(0.5):
            text, shape = f"tkc.interleave({t.name}, {u.name})", (*outer, 2 * last)
        else:
            text, shape = f"tkc.join({t.name}, {u.name})", (*t.shape, 2)
        return self._moved(t, text, shape, u.bound)

    def _repeated(self, t: Tile, axis: int) -> bool:
        rank = len(t.shape)
        if prod(t.shape) > 1024 or rank > 2:
            return False
        shape = (*t.shape[:axis], self.pick((1, 2, 4)), *t.shape[axis:])
        index = along(axis, rank + 1, "None", ":")
        return self._moved(t, f"tkc.broadcast_to({t.name}[{index}], {shape})", shape)

    def _first_element(self, t: Tile, axis: int) -> bool:
        shape = self.shape()
        index = ", ".join(["0"] * len(t.shape))
        return self._moved(t, f"tkc.broadcast_to({t.name}[{index}], {shape})", shape)

    # ----------------------------------------------------------------------------------------------
    def _reduce(self, depth: int) -> None:
        t = self.tile() if self.chance(0.85) else self.truth()
        axis = self.random.randrange(len(t.shape))
        n = t.shape[axis]
        keep = self.chance(0.2)
        left = _with(t.shape, axis, 1) if keep else t.shape[:axis] + t.shape[axis + 1 :]
        kinds = ["sum", "sum", "max", "min", "nanmax", "nanmin", "argmax", "argmin", "any", "all"]
        if not is_float(t.dtype) and t.dtype != "bool_":
            kinds.append("xor_sum")
        kind = self.pick(kinds)
        if kind == "sum" and is_float(t.dtype) and t.bound * n > WHOLE[t.dtype]:
            t = self.small(t, max(1, min(8, WHOLE[t.dtype] // n)))
            if t.bound * n > WHOLE[t.dtype]:
                return
        bounds = {"sum": t.bound * n, "argmax": n, "argmin": n, "any": 1, "all": 1}
        bound = bounds.get(kind, t.bound * (2 if kind == "xor_sum" else 1))
        text = f"tkc.{kind}({t.name}, axis={axis}{', keep_dims=True' if keep else ''})"
        self.let(text, _reduced_dtype(kind, t.dtype), left, bound)

    def _scan(self, depth: int) -> None:
        t = self.tile()
        axis = self.random.randrange(len(t.shape))
        reverse = ", reverse=True" if self.chance(0.3) else ""
        dtype, n = _sum_dtype(t.dtype), t.shape[axis]
        if is_float(dtype):
            t = self.small(t, max(1, min(8, WHOLE[dtype] // n)))
            if t.bound * n > WHOLE[dtype]:
                return
        self.let(f"tkc.cumsum({t.name}, axis={axis}{reverse})", dtype, t.shape, t.bound * n)

    def _combine(self, depth: int) -> None:
        t = self.small(self.tile(), 8)
        axis = self.random.randrange(len(t.shape))
        # no draw: others stay what they were
        kind = ("commutes", "last", "pairs", "commutes", "last")[self.seed % 5]
        if self.chance(0.5):
            function = "tkc.where(b != 0, b, a)" if kind == "last" else "tkc.maximum(a, b)"
            text = f"tkc.reduce({t.name}, {axis}, lambda a, b: {function})"
            self.let(text, t.dtype, t.shape[:axis] + t.shape[axis + 1 :], t.bound)
            return
        reverse = ", reverse=True" if self.chance(0.3) else ""
        if kind == "pairs":  # the largest so far, the last of equals, and what goes with it
            other = self.small(self.tile(t.shape), 8)
            best = "tkc.where(b >= a, b, a), tkc.where(b >= a, j, i)"
            both = (
                f"tkc.scan(({t.name}, {other.name}), {axis}, lambda a, i, b, j: ({best}){reverse})"
            )
            self.let(f"{both}[1]", other.dtype, t.shape, other.bound)
            return
        function = "tkc.where(b != 0, b, a)" if kind == "last" else "tkc.minimum(a, b)"
        self.let(
            f"tkc.scan({t.name}, {axis}, lambda a, b: {function}{reverse})",
            t.dtype,
            t.shape,
            t.bound,
        )

    def _sort(self, depth: int) -> None:
        t = self.tile()
        axis = self.random.randrange(len(t.shape))
        if t.shape[axis] > LONGEST_SORT:
            return
        if self.chance(0.6):
            text = f"tkc.sort({t.name}, axis={axis}, descending={self.chance(0.5)})"
            self.let(text, t.dtype, t.shape, t.bound)
            return
        k = self.random.randint(1, t.shape[axis])
        text = f"tkc.topk({t.name}, {k}, axis={axis})"
        self.let(text, t.dtype, _with(t.shape, axis, k), t.bound)

    def _histogram(self, depth: int) -> None:
        shape = self.shape(1)
        t = self.tile(shape, self.pick(("int32", "int8", "uint8")))
        bins, mask = self.pick((4, 7, 16, 33)), self.mask(shape)
        masked = f", mask={mask}" if mask else ""
        self.let(f"tkc.histogram({t.name}, {bins}{masked})", "int32", (bins,), shape[0])


def _with(shape: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    """A shape with another extent along an axis."""
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _sum_dtype(dtype: str) -> str:
    """Of a sum of such elements: short integers are widened."""
    if is_float(dtype) or dtype.endswith(("32", "64")):
        return dtype
    return "uint32" if dtype[0] == "u" else "int32"


def _reduced_dtype(kind: str, dtype: str) -> str:
    if kind in ("any", "all"):
        return "bool_"
    if kind.startswith("arg") or dtype == "bool_":
        return "int32"
    return _sum_dtype(dtype) if kind == "sum" else dtype
