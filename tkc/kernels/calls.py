"""What a call of an operator did, remembered: a call like one before does it again, without the
Python that found out what to do.

A generator (operator.py) checks its arguments, chooses blocks, allocates, reshapes and launches:
tens of microseconds of Python, of which the next call with arguments like these needs two or three.
When a call comes for the second time, it runs while a `Script` records what it calls in torch and
which kernels it launches. That becomes a function of the same parameters:

    def rms_norm(x, weight, eps):
        _t0 = _empty_cuda((4096, 512), (512, 1), torch.bfloat16)
        _launch(x, weight, _t0)                 # _norm[4096](x, None, weight, None, _t0, …)
        return _t0

    allocations      as empty memory of the same extents, strides and element type, past torch's
                     dispatcher where possible (by the functions that torch.compile's code calls)
    views            of an argument or an allocation, as such: from where they begin there
    other calls      of torch (a copy, a sort), as they were made
    launches         of arguments and allocations by `tkc.repeated`, in machine code, which makes
                     views of them; else `kernel[grid](…)`. The stream, overlapping bytes, TKC_DEBUG
                     and all that a kernel reads are checked by the launcher, as in every launch

The key of a call is written by machine code (`tkc.launch_key`): of each tensor its extents,
strides, element type, device and address modulo 16; of each number its type and value; which
tensors share bytes. Besides, it matters which tensors are one, and whether tables of choices
changed. Numbers that an operator declares as varying (a step, a seed) count by type alone: what is
computed of them is recorded too (`Number`), and comparisons with them are made again. A generator
must not look at anything else, nor at what an array holds: a call that does (`item`), or that uses
a tensor from elsewhere, is not remembered, and runs as it always did; so does every call where
there is no machine code, or a torch before 2.10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from math import inf, nan
from sys import intern
from types import ModuleType
from typing import Any

import tkc

# of one operator
MAX_FUNCTIONS_PER_KIND = 2048  # calls with values of the same types that were recorded
MAX_KEYS_SEEN = 4096  # calls that came once
MAX_KINDS = 64  # combinations of types
EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
# functions of torch whose results have memory of their own, and one type whatever is set (autocast)
ALLOCATING = (
    "clone",
    "_to_copy",
    "new_zeros",
    "new_full",
    "zeros",
    "full",
    "sort",
    "argsort",
    "index",
)
NUMBERS = (int, float, bool, str, type(None))


class Unknown(Exception):
    """What is written down names something that is neither an argument nor was made by the call."""


class Number:
    """A number that is another in the next call, with the text that computes it. Comparisons are
    answered, and become conditions; so is a use of the number itself: then it is this one
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


def _plain(v: Any) -> Any:
    return v.value if isinstance(v, Number) else v


def _asked(x: Number, answer: Any, text: str) -> Any:
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


_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**"}
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_FORMULAS = (
    {f"__{n}__": f"({{0}} {sign} {{1}})" for n, sign in (_ARITHMETIC | _COMPARISONS).items()}
    | {f"__r{n}__": f"({{1}} {sign} {{0}})" for n, sign in _ARITHMETIC.items()}
    | {"__neg__": "(-{0})"}
)
for _name, _formula in _FORMULAS.items():
    setattr(Number, _name, _computed(_name, _formula))


def _sized(func, args: tuple) -> bool:
    """Whether how large a result is depends on what arrays hold: of indices, on masks."""
    if not any(str(t) == "Tag.dynamic_output_shape" for t in func.tags):
        return False
    return func.overloadpacket.__name__ != "index" or any(
        i is not None and str(i.dtype) in ("torch.bool", "torch.uint8") for i in args[1]
    )


class Script:
    """Records what a call does. operation: what it calls in torch; launch: a kernel; function:
    all of it as a function. arguments: what the operator is run with.
    """

    def __init__(self, op: Any, values: Sequence, torch: ModuleType):
        self.op, self.tensor = op, torch.Tensor
        self.whole = True  # nothing was left out
        self.nested = False
        self.conditions: list[str] = []
        parameters = [(p.name, v) for p, v in zip(op.parameters, values, strict=True)]
        self.values = dict(parameters)
        self.made: list[tuple[str, Any]] = []  # launches in machine code, by name
        # of tensors, by identity: each is kept
        self.names = {
            id(v): name for name, v in reversed(parameters) if isinstance(v, torch.Tensor)
        }
        self.given = [v for v in values if isinstance(v, torch.Tensor)]
        self.kept = list(values)
        self.views: dict[int, tuple] = {}
        self.lines: list[str] = []
        self.space = {"_empty": torch.empty_strided, "inf": inf, "nan": nan}
        guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
        for kind in ("cuda", "cpu"):
            if allocate := getattr(guards, f"_empty_strided_{kind}", None):
                self.space[f"_empty_{kind}"] = allocate
        # Arguments and memory of the call's own: tensors of a later call are like these in all but
        # the address, and share bytes where these do.
        self.own = {id(v): v for v in self.given}
        self.device, self.devices = (
            getattr(torch._C, "_cuda_getDevice", None),
            torch.cuda.device_count,
        )
        floats = {name for _, name in op.numbers}

        def given(name: str, v: Any) -> Any:
            if name not in op.varies or v is None:
                return v
            if name in floats and type(v) is int:
                return Number(float(v), f"float({name})", self.conditions)
            return Number(v, name, self.conditions)

        self.arguments = [given(name, v) for name, v in parameters]

    def operation(self, func: Any, args: tuple, kwargs: dict, result: Any) -> None:
        """torch was called. Where it answers with more than tensors, what it answers cannot be
        known before.
        """
        results = result if isinstance(result, (tuple, list)) else (result,)
        self.kept += [*results, args]
        if not all(isinstance(r, self.tensor) for r in results) or _sized(func, args):
            self.whole = False
        elif not func._schema.is_mutable and any(r is a for r in results for a in args):
            self.whole = self.whole and len(results) == 1  # an argument is returned
        elif func.overloadpacket.__name__ in EMPTY and not kwargs.get("pin_memory"):
            self._allocation(result)
        elif not func._schema.is_mutable and self._is_view(args, results):
            self.views[id(result)] = func, args, kwargs
        else:
            self._again(func, args, kwargs, results)

    def _is_view(self, args: tuple, results: Sequence) -> bool:
        """Whether the one result has the memory of the first argument."""
        if len(results) != 1 or not args or not isinstance(args[0], self.tensor):
            return False
        return args[0].untyped_storage()._cdata == results[0].untyped_storage()._cdata

    def _allocation(self, made) -> None:
        name, self.own[id(made)] = self._named(made), made
        like = next(
            (
                self.names[id(x)]
                for x in self.given
                if x.dtype is made.dtype and x.device == made.device
            ),
            None,
        )
        sizes = f"{self._constant(tuple(made.shape))}, {self._constant(made.stride())}"
        kind, dtype = made.device.type, self._constant(made.dtype)
        line = (
            f"{like}.new_empty_strided({sizes})"
            if like
            else f"_empty({sizes}, dtype={dtype}, device={self._constant(made.device)})"
        )
        if f"_empty_{kind}" in self.space and (kind == "cpu" or self.device):
            quick, general = f"_empty_{kind}({sizes}, {dtype})", line
            line = quick  # on the device that is current
            if kind != "cpu" and self.devices() > 1:
                current = self._constant(self.device)
                line = f"{quick} if {current}() == {made.device.index} else {general}"
        self.lines.append(f"{name} = {line}")

    def _again(self, func, args: tuple, kwargs: dict, results: Sequence) -> None:
        """A function of torch, called as it was."""
        try:
            if self._is_method(func, args):  # quicker
                name = func.overloadpacket.__name__
                call = f"{self._text(args[0])}.{name}({self._arguments(args[1:], kwargs)})"
            else:
                call = f"{self._constant(func)}({self._arguments(args, kwargs)})"
        except Unknown:
            self.whole = False
            return
        if all(id(r) in self.names for r in results):
            self.lines.append(call)  # it changed an array in place
        else:
            if func.namespace == "aten" and func.overloadpacket.__name__ in ALLOCATING:
                self.own |= {id(r): r for r in results}
            self.lines.append(
                f"{', '.join(map(self._named, results))}{',' * (len(results) > 1)} = {call}"
            )

    def _is_method(self, func, args: tuple) -> bool:
        """Whether the first argument has this function as a method that takes the other ones."""
        if func.namespace != "aten" or func._overloadname != "default":
            return False
        if not args or not isinstance(args[0], self.tensor):
            return False
        if any(isinstance(a, (list, tuple)) and any(v is None for v in a) for a in args):
            return False
        return hasattr(self.tensor, func.overloadpacket.__name__)

    def launch(self, kernel: Any, grid: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        """A kernel was launched."""

        def index(n):
            return n.__index__() if isinstance(n, Number) else n

        grid = tuple(map(index, grid)) if isinstance(grid, tuple) else index(grid)
        kernel[grid](*map(_plain, args), **{k: _plain(v) for k, v in kwargs.items()})
        if self.nested:
            return  # by an operator that this one calls, and will call
        try:
            line = self._repeated(kernel, grid, args, kwargs)
            if line is None:
                launcher = f"{self._constant(kernel)}[{self._constant(grid)}]"
                line = f"{launcher}({self._arguments(args, kwargs)})"
            self.lines.append(line)
        except Unknown:
            self.whole = False

    def _repeated(self, kernel, grid, args: tuple, kwargs: dict) -> str | None:
        """The launch in machine code, of what it is given: arguments, allocations, numbers that
        vary.
        """
        texts: list[str] = []
        given: list[Any] = []
        places: dict[str, tuple[int, tuple | None]] = {}
        for name, v in (*zip(kernel.names, args, strict=False), *kwargs.items()):
            if isinstance(v, Number):
                places[name] = len(texts), None
                texts.append(v.text)
                given.append(v.value)
            elif isinstance(v, self.tensor):
                base, view = (v, None) if id(v) in self.own else self._base_and_view(v)
                if base is None:
                    return None
                text = self.names[id(base)]
                if text not in texts:
                    texts.append(text)
                    given.append(base)
                places[name] = texts.index(text), view
        if not any(isinstance(v, self.tensor) for v in given):
            return None
        plain = {k: _plain(v) for k, v in kwargs.items()}
        found = tkc.repeated(kernel, grid, [*map(_plain, args)], plain, given, places)
        if found is None:
            return None
        self.made.append((name := self._constant(found.call), found))
        return f"{name}({', '.join(texts)})"

    def _base_and_view(self, view) -> tuple:
        """What a view was first made of, and (extents, strides, elements before it) of the view;
        (None, None) where it has other elements, or none, or some from elsewhere.
        """
        try:
            base, alike = self._root(view, self.own)
        except Unknown:
            return None, None

        def last(x):
            return sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))

        first = (view.data_ptr() - base.data_ptr()) // view.element_size()
        if not alike or not view.numel() or not 0 <= first <= first + last(view) <= last(base):
            return None, None
        return base, (tuple(view.shape), view.stride(), first)

    def function(
        self,
        result: Any,
        on_mutation: Callable,
        pairs: Sequence[tuple[str, str, bool]],
        otherwise: Callable,
    ) -> Callable | None:
        """All of it, as a function of the operator's parameters that gives the result anew; None
        where something else is needed than they. on_mutation: called with an array that was changed
        in place. pairs: of its tensors, and whether they are one; where they are not as here,
        `otherwise` is called.
        """
        if not self.whole:
            return None
        self._ask_how_far_apart(pairs)
        try:
            end = self._text(result)
        except Unknown:
            return None
        parameters = ", ".join(p.name for p in self.op.parameters)
        mutated = [
            f"_on_mutation({p.name})"
            for p, v in zip(self.op.parameters, self.arguments, strict=True)
            if p.name in self.op.mutates and v is not None
        ]
        guards = self._guards(pairs, parameters)
        body = "\n    ".join([*guards, *self.lines, *mutated, f"return {end}"])
        within = self.space | {
            "_on_mutation": on_mutation,
            "_run": self.op.run,
            "_otherwise": otherwise,
            "_kept": [v for v in self.arguments if isinstance(v, str)],
        }
        space: dict[str, Any] = {}
        exec(f"def {self.op.fn.__name__}({parameters}):\n    {body}", within, space)
        for name, made in self.made:
            made.place = within, name
        return space[self.op.fn.__name__]

    def _guards(self, pairs: Sequence[tuple[str, str, bool]], parameters: str) -> list[str]:
        """Lines that return where the call is another one after all."""
        met = [
            f"{x} is {y}" if one else f"{x} is not {y}"
            for x, y, one in pairs
            if one or self._meet(x, y)
        ]
        guards = [f"if not ({' and '.join(met)}): return _otherwise({parameters})"] if met else []
        if self.conditions:
            conditions = " and ".join(dict.fromkeys(self.conditions))
            guards.append(f"if not ({conditions}): return _run({parameters})")
        return guards

    def _ask_how_far_apart(self, pairs: Sequence[tuple[str, str, bool]]) -> None:
        """Makes it a condition where an array that changes lies among the bytes of another one: it
        is not in the key, and the operator has looked whether they share any.
        """
        changed = set(self.op.mutates)
        for x, y, _ in pairs:
            if changed & {x, y} and self._meet(x, y):
                far = self.values[y].data_ptr() - self.values[x].data_ptr()
                self.conditions.append(f"{y}.data_ptr() - {x}.data_ptr() == {far}")

    def _meet(self, *names: str) -> bool:
        """Whether two tensors may share bytes: where they do not, they are not one. (They lie as in
        every call with such a key.)
        """

        def span(v):
            last = sum((n - 1) * s for n, s in zip(v.shape, v.stride(), strict=True))
            return v.data_ptr(), v.data_ptr() + v.element_size() * (1 + last)

        (low, high), (other, above) = (span(self.values[name]) for name in names)
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
            items = "".join(self._text(v) + ", " for v in value)
            return f"[{items}]" if isinstance(value, list) else f"({items})"
        return "None" if value is None else self._constant(value)

    def _view(self, view) -> str:
        """A view is one of what it was first made of; of other elements, as it was made."""
        root, alike = self._root(view, self.names)
        base, name = self.names[id(root)], None
        if not alike:
            func, args, kwargs = self.views[id(view)]
            self._again(func, args, kwargs, (view,))
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
    dispatcher calls it, which does not look any more whether torch watches.
    """

    def __init__(
        self,
        op: Any,
        torch: ModuleType,
        watchers: Sequence[Callable],
        alone: Callable,
        watched: Callable,
        record: Callable,
    ):
        self.op, self.alone, self.watched, self.record = op, alone, watched, record
        # by the types of a call's values: the functions that were recorded, by `tkc.launch_key`
        self.kinds: dict[tuple[type, ...], Any] = {}
        self.seen: set[tuple[int, bytes]] = set()  # keys that came once
        self.tensors = tuple(p.name for p in op.parameters if str(p.annotation).startswith("Array"))
        self.space: dict[str, Any] = {f"_d_{p.name}": p.default for p in op.parameters}
        self.space |= {f"_w{i}": w for i, w in enumerate(watchers)}
        self.space |= {
            "_find": lambda *_: None,
            "_grad": torch.is_grad_enabled,
            "_kinds": self.kinds,
            "_intern": intern,
            "_first": self._first,
            "_behind": self._behind,
            "_Error": tkc.Error,
            "_hide_own_frames": tkc.hide_own_frames,
        }
        self.first, self.behind = self._written(len(watchers), True), self._written(0, False)

    def _written(self, watchers: int, asking: bool) -> Callable:
        """A function of the operator's own parameters: it looks up what the call depends on, and
        calls what it finds there.
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
        given = ", ".join(p.name for p in self.op.parameters)
        on_miss = "_first" if asking else "_behind"
        # torch makes a new text in each call
        texts = "".join(
            f"    if {p.name}.__class__ is str: {p.name} = _intern({p.name})\n"
            for p in self.op.parameters
            if str(p.annotation).startswith("str")
        )
        types = "".join(f"{p.name}.__class__, " for p in self.op.parameters)
        found = " and ".join(["_call is not None", *asked])
        space: dict[str, Any] = {}
        exec(
            f"""def {self.op.fn.__name__}({", ".join(parameters)}):
{texts}    _call = _find({given})
    if _call is None and (_other := _kinds.get(({types}))) is not None:
        _call = _other.find({given})
    if {found}: return _call({given})
    return {on_miss}({given})""",
            self.space,
            space,
        )
        return space[self.op.fn.__name__]

    def called(self) -> Callable:
        """`__call__` of the operator's own parameters, so that nothing is packed and unpacked."""
        parameters = ", ".join(
            p.name if p.default is p.empty else f"{p.name}=_d_{p.name}" for p in self.op.parameters
        )
        given = ", ".join(p.name for p in self.op.parameters)
        space: dict[str, Any] = {}
        exec(
            compile(
                "\n" * Calls.called.__code__.co_firstlineno
                + f"""def __call__(self, {parameters}):
    if self.compiling(): return self.torch({given})
    try: return self.first({given})
    except _Error as error:
        _hide_own_frames(error)
        raise""",
                __file__,
                "exec",
            ),
            self.space,
            space,
        )
        space["__call__"].__qualname__ = self.op.fn.__name__  # what Python's own errors call it
        return space["__call__"]

    def _first(self, *values):
        """A call that is not known: it goes where something watches it, else it is done here."""
        return self._behind(*values) if self.alone(values, {}) else self.watched(*values)

    def _behind(self, *values):
        """A call that is not known: the first of its kind is only made, the second written down."""
        if (kind := self._kind(values)) is None or (written := kind.key(*values)) is None:
            return self.op.run(*values)
        self.space["_find"] = kind.find  # looked at first from now on
        op, words, known, seen = self.op, kind.words(written), kind.entries, self.seen
        given = [
            (p.name, v)
            for p, v in zip(op.parameters, values, strict=True)
            if p.name in self.tensors and v is not None
        ]
        pairs = [(x, y, v is w) for (x, v), (y, w) in combinations(given, 2)]
        key = words, tuple(one for *_, one in pairs)
        if (call := known.get(key)) is not None:
            return call(*values)
        if (once := (id(kind), words)) not in seen:
            if len(seen) >= MAX_KEYS_SEEN:
                seen.clear()
            seen.add(once)
            return op.run(*values)
        result, call = self.record(op, values, pairs, self._behind)
        if len(known) >= MAX_FUNCTIONS_PER_KIND:
            known.clear()
        known[key] = known[words] = call or op.run
        return result

    def _kind(self, values: tuple) -> Any:
        """Calls with values of these types; None where a key cannot say what they depend on."""
        types = tuple(map(type, values))
        if types in self.kinds and ((found := self.kinds[types]) is None or found.unchanged()):
            return found
        made = None
        if self._fits(types):
            varying = [p.name in self.op.varies for p in self.op.parameters]
            made = tkc.launch_key(values, varying)
        if len(self.kinds) >= MAX_KINDS:
            self.kinds.clear()
        self.kinds[types] = made
        return made

    def _fits(self, types: Sequence[type]) -> bool:
        """Whether values of these types are arrays where parameters are, and numbers elsewhere."""
        for p, kind in zip(self.op.parameters, types, strict=True):
            if p.name not in self.tensors:
                if kind not in NUMBERS:
                    return False
            elif kind in NUMBERS and " | None" not in str(p.annotation):
                return False
        return True
