"""What a call of an operator did, remembered: a call like one before does it again, without the Python that found out what to do.

A generator (operator.py) checks its arguments, chooses blocks, allocates, reshapes and launches: tens of microseconds of Python, of which the next call with arguments like these needs two or three.
When a call comes for the second time, it runs while somebody writes down (`Script`) what it asks of torch and which kernels it launches. That becomes a function of the same parameters:

    def rms_norm(x, weight, eps):
        _t0 = x.new_empty_strided((4096, 512), (512, 1))
        _norm[4096](x, None, weight, None, _t0, None, 1e-06, CENTRE=False, ROWS=1, COLUMNS=512)
        return _t0

    allocations      as empty memory of the same extents, strides and element type
    views            of an argument or an allocation, as such: from where they begin there
    what else        torch was asked for (a copy, a sort), as it was asked
    launches         `kernel[grid](…)`: the stream, overlapping bytes, TKC_DEBUG and all that a kernel reads are the launcher's business, here as ever

Whose call it was is the key (`Calls`): of each tensor its extents, strides, element type, device, address modulo 16 and sign bit; of each number its type and value; which tensors share bytes, and which are
one; and how often tables of choices changed. Numbers that an operator says are others each time (a step, a seed) count by type alone: what is computed of them is written down too (`Number`), and what they are
compared with asked again. A generator must not look at anything else, nor at what an array holds: a call that does (`item`), or that uses a tensor from elsewhere, is not remembered, and runs as it always did.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from math import inf, nan
from typing import Any

import tkc

REMEMBERED, SEEN, TOGETHER = 1024, 4096, 32     # calls of an operator: as functions, and as keys that came once; ways in which the tensors of one share bytes
EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
NUMBERS = (int, float, bool, str, type(None))


class Unknown(Exception):
    """What is written down names something that is neither an argument nor was made by the call."""


class Number:
    """A number that is another in the next call, with the text that computes it. Comparisons are answered, and become conditions; so is whoever asks for the number itself: then it is this one or none."""
    __slots__ = ("value", "text", "conditions")

    def __init__(self, value: int | float, text: str, conditions: list[str]): self.value, self.text, self.conditions = value, text, conditions
    def __bool__(self) -> bool: return _asked(self, bool(self.value), f"bool({self.text})")
    def __float__(self) -> float: return float(_asked(self, self.value, self.text))
    def __index__(self) -> int: return _asked(self, self.value, self.text).__index__()
    def __hash__(self) -> int: return hash(_asked(self, self.value, self.text))


def _asked(x: Number, answer, text: str):
    x.conditions.append(f"{text} == {answer!r}")
    return answer


def _computed(name: str, text: str) -> Callable:
    def compute(x: Number, *other):
        value = getattr(x.value, name)(*(o.value if isinstance(o, Number) else o for o in other))
        if value is NotImplemented: value = getattr(float(x.value), name)(*(float(o.value if isinstance(o, Number) else o) for o in other))           # an integer and a float
        said = text.format(x.text, *(o.text if isinstance(o, Number) else repr(o) for o in other))
        return _asked(x, value, said) if isinstance(value, bool) else Number(value, said, x.conditions)
    return compute


for _name, _sign in {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**"}.items():
    setattr(Number, f"__{_name}__", _computed(f"__{_name}__", f"({{0}} {_sign} {{1}})"))
    setattr(Number, f"__r{_name}__", _computed(f"__r{_name}__", f"({{1}} {_sign} {{0}})"))
for _name, _sign in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items(): setattr(Number, f"__{_name}__", _computed(f"__{_name}__", f"({{0}} {_sign} {{1}})"))
Number.__neg__ = _computed("__neg__", "(-{0})")


class Script:
    """Writes down what a call does. operation: what it asks of torch; launch: a kernel; function: all of it as a function. arguments: what the operator is run with."""

    def __init__(self, op, values: Sequence, torch):
        self.op, self.tensor, self.whole, self.conditions = op, torch.Tensor, True, []                  # whole: nothing was left out
        parameters = [(p.name, v) for p, v in zip(op.parameters, values, strict=True)]
        self.names = {id(v): name for name, v in reversed(parameters) if isinstance(v, torch.Tensor)}   # of tensors, by identity: each is kept
        self.given, self.kept, self.views, self.lines, self.space = [v for v in values if isinstance(v, torch.Tensor)], list(values), {}, [], {"_empty": torch.empty_strided, "inf": inf, "nan": nan}
        floats = {name for _, name in op.numbers}
        self.arguments = [Number(*((float(v), f"float({name})") if name in floats and type(v) is int else (v, name)), self.conditions) if name in op.varies and v is not None else v for name, v in parameters]

    def operation(self, func, args: tuple, kwargs: dict, result) -> None:
        """torch was asked for something. Where it answers with more than tensors, nobody can know it before."""
        results = result if isinstance(result, (tuple, list)) else (result,)
        self.kept += [*results, args]
        if not all(isinstance(r, self.tensor) for r in results): self.whole = False
        elif not func._schema.is_mutable and any(r is a for r in results for a in args): self.whole = self.whole and len(results) == 1           # what was given comes back
        elif func.overloadpacket.__name__ in EMPTY and not kwargs.get("pin_memory"): self._allocation(result)
        elif not func._schema.is_mutable and len(results) == 1 and args and isinstance(args[0], self.tensor) and args[0].untyped_storage()._cdata == result.untyped_storage()._cdata: self.views[id(result)] = func, args, kwargs
        else: self._again(func, args, kwargs, results)

    def _allocation(self, made) -> None:
        name = self._named(made)
        like = next((self.names[id(x)] for x in self.given if x.dtype is made.dtype and x.device == made.device), None)
        sizes = f"{self._constant(tuple(made.shape))}, {self._constant(made.stride())}"
        self.lines.append(f"{name} = " + (f"{like}.new_empty_strided({sizes})" if like else f"_empty({sizes}, dtype={self._constant(made.dtype)}, device={self._constant(made.device)})"))

    def _again(self, func, args: tuple, kwargs: dict, results: Sequence) -> None:
        """Something of torch's, asked for as it was."""
        method = func._overloadname == "default" and args and isinstance(args[0], self.tensor) and hasattr(self.tensor, name := func.overloadpacket.__name__)              # the quicker way to the same
        try: call = (f"{self._text(args[0])}.{name}" if method else self._constant(func)) + f"({self._arguments(args[1:] if method else args, kwargs)})"
        except Unknown: self.whole = False; return
        if all(id(r) in self.names for r in results): self.lines.append(call)         # it changed an array in place
        else: self.lines.append(f"{', '.join(map(self._named, results))}{',' * (len(results) > 1)} = {call}")

    def launch(self, kernel, grid, args: tuple, kwargs: dict) -> None:
        plain = lambda v: v.value if isinstance(v, Number) else v
        kernel[grid](*map(plain, args), **{k: plain(v) for k, v in kwargs.items()})
        try: self.lines.append(f"{self._constant(kernel)}[{self._constant(grid)}]({self._arguments(args, kwargs)})")
        except Unknown: self.whole = False

    def function(self, result, tell: Callable) -> Callable | None:
        """All of it, as a function of the operator's parameters that gives the result anew; None where something else is needed than they. tell: who is told of an array that was changed in place."""
        if not self.whole: return None
        try: end = self._text(result)
        except Unknown: return None
        parameters = ", ".join(p.name for p in self.op.parameters)
        doubts = [f"if not ({' and '.join(dict.fromkeys(self.conditions))}): return _run({parameters})"] if self.conditions else []
        told = [f"_tell({p.name})" for p, v in zip(self.op.parameters, self.arguments, strict=True) if p.name in self.op.mutates and v is not None]
        body = "\n    ".join([*doubts, *self.lines, *told, f"return {end}"])
        exec(f"def {self.op.fn.__name__}({parameters}):\n    {body}", self.space | {"_tell": tell, "_run": self.op.run}, space := {})
        return space[self.op.fn.__name__]

    def _named(self, made) -> str: return self.names.setdefault(id(made), f"_t{len(self.names)}")

    def _constant(self, value) -> str:
        name = f"_c{len(self.space)}"
        self.space[name] = value
        return name

    def _arguments(self, args: Sequence, kwargs: dict) -> str: return ", ".join([*map(self._text, args), *(f"{k}={self._text(v)}" for k, v in kwargs.items())])

    def _text(self, value) -> str:
        """A value in the words of the function. Raises Unknown for a tensor from elsewhere."""
        if isinstance(value, Number): return value.text
        if isinstance(value, self.tensor): return self.names.get(id(value)) or self._view(value)
        if isinstance(value, (tuple, list)) and any(isinstance(v, (self.tensor, tuple, list)) for v in value):
            return f"{'[' if isinstance(value, list) else '('}{''.join(self._text(v) + ', ' for v in value)}{']' if isinstance(value, list) else ')'}"
        return "None" if value is None else self._constant(value)

    def _view(self, view) -> str:
        """A view is one of what it was first made of; of other elements, as it was made."""
        root, dtypes = view, set()
        while id(root) in self.views and id(root) not in self.names:
            dtypes.add(root.dtype)
            root = self.views[id(root)][1][0]
        if id(root) not in self.names: raise Unknown
        base, name = self.names[id(root)], None
        if dtypes | {root.dtype} != {view.dtype}: self._again(*self.views[id(view)], (view,)); return self.names[id(view)]
        step, name = view.data_ptr() - root.data_ptr(), self._named(view)
        start = f", {base}.storage_offset() + {step // view.element_size()}" if step else ""
        self.lines.append(f"{name} = {base}.as_strided({self._constant(tuple(view.shape))}, {self._constant(view.stride())}{start})")
        return name


class Calls:
    """The calls of one operator. `first` is the operator as the caller sees it, `behind` as torch's dispatcher calls it, where nobody asks any longer whether somebody watches."""

    def __init__(self, op, torch, watchers: Sequence[Callable], alone: Callable, record: Callable):
        self.op, self.alone, self.record = op, alone, record
        self.known: dict[tuple, tuple] = {}                     # what a call depends on: ({how its tensors share bytes: function}, a function that says how)
        self.seen: set[tuple] = set()
        self.tensors = tuple(p.name for p in op.parameters if str(p.annotation).startswith("Array"))
        self.space = {f"_d_{p.name}": p.default for p in op.parameters} | {f"_w{i}": w for i, w in enumerate(watchers)}
        self.space |= {"_T": torch.Tensor, "_P": torch.nn.Parameter, "_grad": torch.is_grad_enabled, "_find": self.known.get, "_handed": tkc.handed, "_first": self._first, "_behind": self._behind}
        self.first, self.behind = self._written(len(watchers), True), self._written(0, False)

    def _written(self, watchers: int, asking: bool) -> Callable:
        """A function of the operator's own parameters: it makes the key, and calls what it finds there."""
        op, places = self.op, {name: i for i, name in enumerate(self.tensors)}
        parameters, key, plain, wanting, addresses = [], [], [], [], []
        for p in op.parameters:
            x, maybe, i = p.name, " | None" in str(p.annotation), places.get(p.name)
            parameters.append(x if p.default is p.empty else f"{x}=_d_{x}")
            if i is None:
                key.append(f"{x}.__class__" + (f", {x}" + f" or str({x})" * ("float" in str(p.annotation))) * (x not in op.varies))           # 1, 1.0 and True differ, and 0.0 and -0.0
                continue
            facts = f"{x}.shape, {x}.stride(), {x}.dtype, {x}.device, _p{i} & 15 if _p{i} else None, {x}.is_neg()"
            addresses.append(f"_p{i} = 0 if {x} is None else {x}.data_ptr()" if maybe else f"_p{i} = {x}.data_ptr()")
            key.append(f"None if {x} is None else ({facts})" if maybe else facts)
            plain.append(f"({f'{x} is None or ' * maybe}type({x}) is _T or type({x}) is _P)")
            wanting.append(f"{x} is not None and {x}.requires_grad" if maybe else f"{x}.requires_grad")
        asked = [*plain, *([f"not ({' or '.join(f'_w{i}()' for i in range(watchers))})", f"not (({' or '.join(wanting)}) and _grad())"] if asking else [])]
        given, missed = ", ".join(p.name for p in op.parameters), "_first" if asking else "_behind"
        exec(f"""def {op.fn.__name__}({', '.join(parameters)}):
    _call = _key = _met = None
    if {' and '.join(asked) or 'True'}:
        try:
            {'; '.join(addresses) or 'pass'}
            _key = _handed.changes, {', '.join(key)},
            _found = _find(_key)
            if _found is not None:
                _calls, _meet = _found
                _met = _meet({', '.join([*(f'_p{i}' for i in places.values()), *places])}) if _meet is not None else 0
                _call = _calls.get(_met)
        except (TypeError, RuntimeError): _key = None
    if _call is not None: return _call({given})
    return {missed}(_key, _met, {given})""", self.space, space := {})
        return space[op.fn.__name__]

    def _first(self, key: tuple | None, met: Any, *values):
        """A call that is not known: it goes through the dispatcher where somebody wants to see it there, else it is done here."""
        return self._behind(key, met, *values) if self.alone(values, {}) else self.op.torch(*values)

    def _behind(self, key: tuple | None, met: Any, *values):
        """A call that is not known: the first of its kind is only made, the second written down."""
        op = self.op
        given = [v for p, v in zip(op.parameters, values, strict=True) if p.name in self.tensors]
        numbers = [(p.name, v) for p, v in zip(op.parameters, values, strict=True) if p.name not in self.tensors]
        if key is None or not all(x is None or x.data_ptr() for x in given) or not all(type(v) in (NUMBERS if name not in op.varies else (int, float, type(None))) for name, v in numbers): return op.run(*values)
        if met is None:
            if key not in self.seen:
                if len(self.seen) >= SEEN: self.seen.clear()
                self.seen.add(key)
                return op.run(*values)
            if len(self.known) >= REMEMBERED: self.known.clear()
            meet = _meet(given)
            self.known[key] = {}, meet
            met = meet(*(0 if x is None else x.data_ptr() for x in given), *given) if meet else 0
        result, call = self.record(op, values)
        calls = self.known[key][0] if key in self.known else {}
        if len(calls) >= TOGETHER: calls.clear()
        calls[met] = call or op.run
        return result


def _meet(given: Sequence) -> Callable | None:
    """A function of addresses, and then of tensors like these, that says of each two of them: 0 where they share no bytes, 2 where they are one, else 1. None where there is one."""
    reach = {i: 0 if 0 in x.shape else x.element_size() * (1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))) for i, x in enumerate(given) if x is not None}
    if len(reach) < 2: return None
    pairs = [f"0 if p{i} + {reach[i]} <= p{j} or p{j} + {reach[j]} <= p{i} else 2 if x{i} is x{j} else 1" for i, j in combinations(reach, 2)]
    return eval(f"lambda {', '.join(f'{kind}{i}' for kind in 'px' for i in range(len(given)))}: ({', '.join(pairs)},)")
