"""What a call of an operator did, remembered: a call like one before does it again, without the
Python that found out what to do.

A generator (operator.py) checks its arguments, chooses blocks, allocates, reshapes and launches:
tens of microseconds of Python, of which the next call with arguments like these needs two or three.
When a call comes for the second time, it runs while somebody writes down (`Script`) what it asks of
torch and which kernels it launches. That becomes a function of the same parameters:

    def rms_norm(x, weight, eps):
        _t0 = _empty_cuda((4096, 512), (512, 1), torch.bfloat16)
        _launch(x, weight, _t0)                 # _norm[4096](x, None, weight, None, _t0, None, 1e-06, CENTRE=False, ROWS=1, COLUMNS=512)
        return _t0

    allocations      as empty memory of the same extents, strides and element type, past torch's dispatcher where there is a way (what torch.compile's code takes)
    views            of an argument or an allocation, as such: from where they begin there
    what else        torch was asked for (a copy, a sort), as it was asked
    launches         of arguments and allocations (`tkc.repeated`, in machine code, which knows views of them), else `kernel[grid](…)`: the stream, overlapping bytes, TKC_DEBUG and all that a kernel reads are
                     the launcher's business, here as ever

Whose call it was, machine code tells (`tkc.teller`): of each tensor its extents, strides, element
type, device and address modulo 16; of each number its type and value; which tensors share bytes.
Beside that count which tensors are one, and whether tables of choices changed. Numbers that an
operator says are others each time (a step, a seed) count by type alone: what is computed of them is
written down too (`Number`), and what they are compared with asked again. A generator must not look
at anything else, nor at what an array holds: a call that does (`item`), or that uses a tensor from
elsewhere, is not remembered, and runs as it always did; so does every call where there is no
machine code, or a torch before 2.10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from math import inf, nan
from sys import intern

import tkc

REMEMBERED, SEEN, KINDS = (
    2048,
    4096,
    64,
    # calls of an operator with values of the same types: as functions, and as keys that came once;
    # such
    # types
)
EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
SURE = (
    "clone",
    "_to_copy",
    "new_zeros",
    "new_full",
    "zeros",
    "full",
    "sort",
    "argsort",
    "index",
    # what these of torch's give has memory of its own, and is of one type whatever else is set
    # (autocast)
)
NUMBERS = (int, float, bool, str, type(None))
NOBODY = lambda *_: None, 0, lambda *_: None, (), 0  # who tells what no call depends on


class Unknown(Exception):
    """What is written down names something that is neither an argument nor was made by the call."""


class Number:
    """A number that is another in the next call, with the text that computes it. Comparisons are
    answered, and become conditions; so is whoever asks for the number itself: then it is this one
    or none.
    """

    __slots__ = ("value", "text", "conditions")

    def __init__(self, value: int | float, text: str, conditions: list[str]):
        self.value, self.text, self.conditions = value, text, conditions

    def __bool__(self) -> bool:
        return _asked(self, bool(self.value), f"bool({self.text})")

    def __float__(self) -> float:
        return float(_asked(self, self.value, self.text))

    def __int__(self) -> int:
        return int(_asked(self, self.value, self.text))

    def __index__(self) -> int:
        return _asked(self, self.value, self.text).__index__()

    def __hash__(self) -> int:
        return hash(_asked(self, self.value, self.text))


def _asked(x: Number, answer, text: str):
    x.conditions.append(f"{text} == {answer!r}")
    return answer


def _computed(name: str, text: str) -> Callable:
    def compute(x: Number, *other):
        if not all(isinstance(o, (int, float, complex, Number)) for o in other):
            return NotImplemented
        value = getattr(x.value, name)(*(o.value if isinstance(o, Number) else o for o in other))
        if value is NotImplemented:
            value = getattr(float(x.value), name)(
                *(float(o.value if isinstance(o, Number) else o) for o in other)
            )  # an integer and a float
        said = text.format(
            x.text, *(o.text if isinstance(o, Number) else f"({o!r})" for o in other)
        )
        return (
            _asked(x, value, said) if isinstance(value, bool) else Number(value, said, x.conditions)
        )

    return compute


for _name, _sign in {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**"}.items():
    setattr(Number, f"__{_name}__", _computed(f"__{_name}__", f"({{0}} {_sign} {{1}})"))
    setattr(Number, f"__r{_name}__", _computed(f"__r{_name}__", f"({{1}} {_sign} {{0}})"))
for _name, _sign in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items():
    setattr(Number, f"__{_name}__", _computed(f"__{_name}__", f"({{0}} {_sign} {{1}})"))
Number.__neg__ = _computed("__neg__", "(-{0})")


def _sized(func, args: tuple) -> bool:
    """Whether how large a result is depends on what arrays hold: of indices, on masks."""
    if not any(str(t) == "Tag.dynamic_output_shape" for t in func.tags):
        return False
    return func.overloadpacket.__name__ != "index" or any(
        i is not None and str(i.dtype) in ("torch.bool", "torch.uint8") for i in args[1]
    )


class Script:
    """Writes down what a call does. operation: what it asks of torch; launch: a kernel; function:
    all of it as a function. arguments: what the operator is run with.
    """

    def __init__(self, op, values: Sequence, torch):
        self.op, self.tensor, self.whole, self.nested, self.conditions = (
            op,
            torch.Tensor,
            True,
            False,
            [],
        )  # whole: nothing was left out
        parameters = [(p.name, v) for p, v in zip(op.parameters, values, strict=True)]
        self.values, self.made = dict(parameters), []  # made: launches in machine code, by name
        self.names = {
            id(v): name for name, v in reversed(parameters) if isinstance(v, torch.Tensor)
        }  # of tensors, by identity: each is kept
        self.given, self.kept, self.views, self.lines, self.space = (
            [v for v in values if isinstance(v, torch.Tensor)],
            list(values),
            {},
            [],
            {"_empty": torch.empty_strided, "inf": inf, "nan": nan},
        )
        self.space |= {
            f"_empty_{kind}": made
            for kind in ("cuda", "cpu")
            if (
                made := getattr(
                    getattr(getattr(torch._C, "_dynamo", None), "guards", None),
                    f"_empty_strided_{kind}",
                    None,
                )
            )
        }
        self.sure = {
            id(v): v
            for v in self.given
            # tensors of which a later call's are alike in all but the address, and share bytes
            # where
            # these do: arguments, memory of the call's own
        }
        self.device, self.devices = (
            getattr(torch._C, "_cuda_getDevice", None),
            torch.cuda.device_count,
        )
        floats = {name for _, name in op.numbers}
        self.arguments = [
            (
                Number(
                    *(
                        (float(v), f"float({name})")
                        if name in floats and type(v) is int
                        else (v, name)
                    ),
                    self.conditions,
                )
                if name in op.varies and v is not None
                else v
            )
            for name, v in parameters
        ]

    def operation(self, func, args: tuple, kwargs: dict, result) -> None:
        """torch was asked for something. Where it answers with more than tensors, nobody can know
        it before.
        """
        results = result if isinstance(result, (tuple, list)) else (result,)
        self.kept += [*results, args]
        if not all(isinstance(r, self.tensor) for r in results) or _sized(func, args):
            self.whole = False
        elif not func._schema.is_mutable and any(r is a for r in results for a in args):
            self.whole = self.whole and len(results) == 1  # what was given comes back
        elif func.overloadpacket.__name__ in EMPTY and not kwargs.get("pin_memory"):
            self._allocation(result)
        elif (
            not func._schema.is_mutable
            and len(results) == 1
            and args
            and isinstance(args[0], self.tensor)
            and args[0].untyped_storage()._cdata == result.untyped_storage()._cdata
        ):
            self.views[id(result)] = func, args, kwargs
        else:
            self._again(func, args, kwargs, results)

    def _allocation(self, made) -> None:
        name, self.sure[id(made)] = self._named(made), made
        like = next(
            (
                self.names[id(x)]
                for x in self.given
                if x.dtype is made.dtype and x.device == made.device
            ),
            None,
        )
        sizes, kind, dtype = (
            f"{self._constant(tuple(made.shape))}, {self._constant(made.stride())}",
            made.device.type,
            self._constant(made.dtype),
        )
        line = (
            f"{like}.new_empty_strided({sizes})"
            if like
            else f"_empty({sizes}, dtype={dtype}, device={self._constant(made.device)})"
        )
        if f"_empty_{kind}" in self.space and (
            kind == "cpu" or self.device
        ):  # on the device that is current
            line = f"_empty_{kind}({sizes}, {dtype})" + (
                f" if {self._constant(self.device)}() == {made.device.index} else {line}"
                if kind != "cpu" and self.devices() > 1
                else ""
            )
        self.lines.append(f"{name} = {line}")

    def _again(self, func, args: tuple, kwargs: dict, results: Sequence) -> None:
        """Something of torch's, asked for as it was."""
        method = (
            func.namespace == "aten"
            and func._overloadname == "default"
            and not any(isinstance(a, (list, tuple)) and any(v is None for v in a) for a in args)
            and args
            and isinstance(args[0], self.tensor)
            and hasattr(self.tensor, name := func.overloadpacket.__name__)
        )  # the quicker way to the same
        try:
            call = (
                f"{self._text(args[0])}.{name}" if method else self._constant(func)
            ) + f"({self._arguments(args[1:] if method else args, kwargs)})"
        except Unknown:
            self.whole = False
            return
        if all(id(r) in self.names for r in results):
            self.lines.append(call)  # it changed an array in place
        else:
            if func.namespace == "aten" and func.overloadpacket.__name__ in SURE:
                self.sure |= {id(r): r for r in results}
            self.lines.append(
                f"{', '.join(map(self._named, results))}{',' * (len(results) > 1)} = {call}"
            )

    def launch(self, kernel, grid, args: tuple, kwargs: dict) -> None:
        def plain(v):
            return v.value if isinstance(v, Number) else v

        grid = (
            tuple(n.__index__() if isinstance(n, Number) else n for n in grid)
            if isinstance(grid, tuple)
            else grid.__index__()
            if isinstance(grid, Number)
            else grid
        )
        kernel[grid](*map(plain, args), **{k: plain(v) for k, v in kwargs.items()})
        if self.nested:
            return  # by an operator that this one calls, and will call
        try:
            self.lines.append(
                self._repeated(kernel, grid, args, kwargs)
                or f"{self._constant(kernel)}[{self._constant(grid)}]({self._arguments(args, kwargs)})"
            )
        except Unknown:
            self.whole = False

    def _repeated(self, kernel, grid, args: tuple, kwargs: dict) -> str | None:
        """The launch in machine code, of what it is given: arguments, allocations, numbers that
        vary.
        """
        texts, given, places = [], [], {}
        for name, v in (*zip(kernel.names, args, strict=False), *kwargs.items()):
            if not isinstance(v, (Number, self.tensor)):
                continue
            base, view = (
                (v.value, None)
                if isinstance(v, Number)
                else (v, None)
                if id(v) in self.sure
                else self._seen(v)
            )
            if base is None:
                return None
            text = v.text if isinstance(v, Number) else self.names[id(base)]
            if isinstance(v, Number) or text not in texts:
                texts.append(text)
                given.append(base)
            places[name] = len(texts) - 1 if isinstance(v, Number) else texts.index(text), view
        if (
            not any(isinstance(v, self.tensor) for v in given)
            or (
                found := tkc.repeated(
                    kernel,
                    grid,
                    [v.value if isinstance(v, Number) else v for v in args],
                    {k: v.value if isinstance(v, Number) else v for k, v in kwargs.items()},
                    given,
                    places,
                )
            )
            is None
        ):
            return None
        self.made.append((name := self._constant(found.launch), found))
        return f"{name}({', '.join(texts)})"

    def _seen(self, view) -> tuple:
        """What a view was first made of, and (extents, strides, elements before it) of the view;
        (None, None) where it has other elements, or none, or some from elsewhere.
        """
        try:
            base, alike = self._root(view, self.sure)
        except Unknown:
            return None, None

        def last(x):
            return sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))

        if (
            not alike
            or not view.numel()
            or not 0
            <= (first := (view.data_ptr() - base.data_ptr()) // view.element_size())
            <= first + last(view)
            <= last(base)
        ):
            return None, None
        return base, (tuple(view.shape), view.stride(), first)

    def function(
        self, result, tell: Callable, pairs: Sequence[tuple[str, str, bool]], otherwise: Callable
    ) -> Callable | None:
        """All of it, as a function of the operator's parameters that gives the result anew; None
        where something else is needed than they. tell: who is told of an array that was changed in
        place. pairs: of its tensors, and whether they are one; where they are not as here,
        `otherwise` is called.
        """
        if not self.whole:
            return None
        try:
            end = self._text(result)
        except Unknown:
            return None
        parameters = ", ".join(p.name for p in self.op.parameters)
        met = [
            f"{x} is {y}" if one else f"{x} is not {y}"
            for x, y, one in pairs
            if one or self._meet(x, y)
        ]
        doubts = [f"if not ({' and '.join(met)}): return _otherwise({parameters})"] if met else []
        doubts += (
            [f"if not ({' and '.join(dict.fromkeys(self.conditions))}): return _run({parameters})"]
            if self.conditions
            else []
        )
        told = [
            f"_tell({p.name})"
            for p, v in zip(self.op.parameters, self.arguments, strict=True)
            if p.name in self.op.mutates and v is not None
        ]
        body = "\n    ".join([*doubts, *self.lines, *told, f"return {end}"])
        within = self.space | {
            "_tell": tell,
            "_run": self.op.run,
            "_otherwise": otherwise,
            "_kept": [v for v in self.arguments if isinstance(v, str)],
        }
        exec(f"def {self.op.fn.__name__}({parameters}):\n    {body}", within, space := {})
        for name, made in self.made:
            made.place = within, name
        return space[self.op.fn.__name__]

    def _meet(self, *names: str) -> bool:
        """Whether two tensors may share bytes: where they do not, they are not one. (They lie as in
        every call with such a key.)
        """
        (low, high), (other, above) = (
            (
                v.data_ptr(),
                v.data_ptr()
                + v.element_size()
                * (1 + sum((n - 1) * s for n, s in zip(v.shape, v.stride(), strict=True))),
            )
            for v in map(self.values.__getitem__, names)
        )
        return low < above and other < high

    def _named(self, made) -> str:
        return self.names.setdefault(id(made), f"_t{len(self.names)}")

    def _constant(self, value) -> str:
        name = f"_c{len(self.space)}"
        self.space[name] = value
        return name

    def _arguments(self, args: Sequence, kwargs: dict) -> str:
        return ", ".join(
            [*map(self._text, args), *(f"{k}={self._text(v)}" for k, v in kwargs.items())]
        )

    def _text(self, value) -> str:
        """A value in the words of the function. Raises Unknown for a tensor from elsewhere."""
        if isinstance(value, Number):
            return value.text
        if isinstance(value, self.tensor):
            return self.names.get(id(value)) or self._view(value)
        if isinstance(value, (tuple, list)) and any(
            isinstance(v, (self.tensor, tuple, list)) for v in value
        ):
            return f"{'[' if isinstance(value, list) else '('}{''.join(self._text(v) + ', ' for v in value)}{']' if isinstance(value, list) else ')'}"
        return "None" if value is None else self._constant(value)

    def _view(self, view) -> str:
        """A view is one of what it was first made of; of other elements, as it was made."""
        root, alike = self._root(view, self.names)
        base, name = self.names[id(root)], None
        if not alike:
            self._again(*self.views[id(view)], (view,))
            return self.names[id(view)]
        step, name = view.numel() and view.data_ptr() - root.data_ptr(), self._named(view)
        start = f", {base}.storage_offset() + {step // view.element_size()}" if step else ""
        self.lines.append(
            f"{name} = {base}.as_strided({self._constant(tuple(view.shape))},"
            f" {self._constant(view.stride())}{start})"
        )
        return name

    def _root(self, view, known: dict) -> tuple:
        """What a view was first made of that is known, and whether its elements are that one's, all
        the way.
        """
        root, dtypes = view, set()
        while id(root) in self.views and id(root) not in known:
            dtypes.add((root.dtype, root.is_neg()))
            root = self.views[id(root)][1][0]
        if id(root) not in known:
            raise Unknown
        return root, dtypes | {(root.dtype, root.is_neg())} == {(view.dtype, view.is_neg())}


class Calls:
    """The calls of one operator. `first` is the operator as the caller sees it, `behind` as torch's
    dispatcher calls it, where nobody asks any longer whether somebody watches.
    """

    def __init__(self, op, torch, watchers: Sequence[Callable], alone: Callable, record: Callable):
        self.op, self.alone, self.record = op, alone, record
        self.kinds: dict[tuple[type, ...], tuple | None] = (
            {}
            # by the types of a call's values: who tells what it depends on, up to where; who finds
            # a
            # function that does it, and (these by what they depend on, keys that came once)
        )
        self.tensors = tuple(p.name for p in op.parameters if str(p.annotation).startswith("Array"))
        self.space = (
            {f"_d_{p.name}": p.default for p in op.parameters}
            | {f"_w{i}": w for i, w in enumerate(watchers)}
            | {"_kind": NOBODY}
        )
        self.space |= {
            "_grad": torch.is_grad_enabled,
            "_handed": tkc.handed,
            "_kinds": self.kinds,
            "_intern": intern,
            "_first": self._first,
            "_behind": self._behind,
        }
        self.first, self.behind = self._written(len(watchers), True), self._written(0, False)

    def _written(self, watchers: int, asking: bool) -> Callable:
        """A function of the operator's own parameters: it asks what the call depends on, and calls
        what it finds there.
        """
        parameters = [
            p.name if p.default is p.empty else f"{p.name}=_d_{p.name}" for p in self.op.parameters
        ]

        def any_of(what):
            return " or ".join(
                (
                    f"{p.name} is not None and {p.name}.{what}"
                    if " | None" in str(p.annotation)
                    else f"{p.name}.{what}"
                )
                for p in self.op.parameters
                if p.name in self.tensors
            )

        asked = (
            [
                *(f"not _w{i}()" for i in range(watchers)),
                f"not (({any_of('requires_grad')}) and _grad())",
                f"not ({any_of('is_neg()')})",
            ]
            if asking
            else []
        )
        given, missed = (
            ", ".join(p.name for p in self.op.parameters),
            ("_first" if asking else "_behind"),
        )
        texts = "".join(
            f"    if {p.name}.__class__ is str: {p.name} = _intern({p.name})\n"
            for p in self.op.parameters
            if str(p.annotation).startswith("str")
        )  # torch makes another of each call
        exec(
            f"""def {self.op.fn.__name__}({", ".join(parameters)}):
{texts}    _, _, _find, _, _now = _kind
    _call = _find({given})
    if _call is None and (_other := _kinds.get(({"".join(f"{p.name}.__class__, " for p in self.op.parameters)}))) is not None:
        _, _, _find, _, _now = _other
        _call = _find({given})
    if {" and ".join(["_call is not None", "_handed.changes == _now", *asked])}: return _call({given})
    return {missed}({given})""",
            self.space,
            space := {},
        )
        return space[self.op.fn.__name__]

    def called(self) -> Callable:
        """`__call__` of the operator's own parameters: nothing is packed and unpacked on the way."""
        parameters, given = (
            ", ".join(words)
            for words in zip(
                *(
                    (p.name if p.default is p.empty else f"{p.name}=_d_{p.name}", p.name)
                    for p in self.op.parameters
                ),
                strict=False,
            )
        )
        exec(
            compile(
                "\n" * Calls.called.__code__.co_firstlineno
                + f"""def __call__(self, {parameters}):
    if self.compiling(): return self.torch({given})
    return self.first({given})""",
                __file__,
                "exec",
            ),
            self.space,
            space := {},
        )
        space["__call__"].__qualname__ = self.op.fn.__name__  # what Python's own errors call it
        return space["__call__"]

    def _first(self, *values):
        """A call that is not known: it goes through the dispatcher where somebody wants to see it
        there, else it is done here.
        """
        return self._behind(*values) if self.alone(values, {}) else self.op.torch(*values)

    def _behind(self, *values):
        """A call that is not known: the first of its kind is only made, the second written down."""
        if (kind := self._kind(values, tkc.handed.changes)) is None or (
            told := kind[0](*values)
        ) is None:
            return self.op.run(*values)
        self.space["_kind"] = kind  # who is asked first from now on
        (_, end, _, (known, seen), _), op = kind, self.op
        told = told[:end]
        given = [
            (p.name, v)
            for p, v in zip(op.parameters, values, strict=True)
            if p.name in self.tensors and v is not None
        ]
        pairs = [(x, y, v is w) for (x, v), (y, w) in combinations(given, 2)]
        key = told, tuple(one for *_, one in pairs)
        if (call := known.get(key)) is not None:
            return call(*values)
        if told not in seen:
            if len(seen) >= SEEN:
                seen.clear()
            seen.add(told)
            return op.run(*values)
        result, call = self.record(op, values, pairs, self._behind)
        if len(known) >= REMEMBERED:
            known.clear()
        known[key] = known[told] = call or op.run
        return result

    def _kind(self, values: tuple, now: int) -> tuple | None:
        """Calls with values of these types; None where nobody can tell what they depend on."""
        if (
            (found := self.kinds.get(types := tuple(map(type, values)), NOBODY)) is None
            or found[4] == now
            and found is not NOBODY
        ):
            return found
        numbers = [
            v for p, v in zip(self.op.parameters, values, strict=True) if p.name not in self.tensors
        ]
        needed = [
            v
            for p, v in zip(self.op.parameters, values, strict=True)
            if p.name in self.tensors and " | None" not in str(p.annotation)
        ]
        teller = (
            tkc.teller(values, [p.name in self.op.varies for p in self.op.parameters])
            if all(type(v) in NUMBERS for v in numbers)
            and not any(type(v) in NUMBERS for v in needed)
            else None
        )
        if len(self.kinds) >= KINDS:
            self.kinds.clear()
        found = self.kinds[types] = (
            None if teller is None else (*teller[:3], (teller[3], set()), now)
        )
        return found
