"""What a launch gives back: the compiled kernel under Triton's names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tkc.runtime.toolchain import package_hash

if TYPE_CHECKING:
    from tkc.compiler import Compiled
    from tkc.ir.interface import Interface
    from tkc.runtime.jit import JitFunction

# Options of a launch that tkc's planner may overrule; under strict=True it keeps them
HINTS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
ON_GPU = ("ptx", "cubin", "sass")
WARP = 32
SHARED_GRANULE = 128  # bytes in which a GPU deals out shared memory


def _for_gpu(compiled: Compiled, compiled_for: Callable[[str], Compiled]) -> Compiled:
    """The code of a GPU: of a launch in host memory, for TKC_TARGET, or sm_90a."""
    if compiled.target != "cpu":
        return compiled
    return compiled_for(os.environ.get("TKC_TARGET", "sm_90a"))


class Assembly(Mapping):
    """Texts by stage: those of tkc's passes, and Triton's names for what there is of them: ttir
    (the traced program), ttgir (the program of threads), ptx, cubin, sass. Of a launch in host
    memory those of a GPU are for TKC_TARGET, or sm_90a.
    """

    def __init__(self, compiled: Compiled, compiled_for: Callable[[str], Compiled]):
        self._compiled, self._compiled_for = compiled, compiled_for

    @cached_property
    def _on_gpu(self) -> Compiled:
        return _for_gpu(self._compiled, self._compiled_for)

    def __getitem__(self, name: str) -> Any:
        match name:
            case "ptx":
                return self._on_gpu.ptx
            case "cubin":
                return self._on_gpu.resources.cubin
            case "sass":
                return self._on_gpu.sass
            case "ttir":
                return self._compiled.ir("trace")
            case "ttgir":
                return self._compiled.ir(list(self._compiled.stages)[-1])
        return self._compiled.stages[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("ttir", "ttgir", *ON_GPU, *self._compiled.stages))

    def __len__(self) -> int:
        return len(list(iter(self)))


class CompiledKernel:
    """A kernel as it was compiled for the arguments of a launch."""

    def __init__(self, function: Any, args: tuple, kwargs: dict[str, Any]):
        self.function, self._call = function, (args, kwargs)
        self.grid: Any = None  # of a launch that was told to an observer
        # of `triton.compile`: the ASTSource, and the kind of device it was compiled for
        self.src: Any = None
        self.place = ""

    @cached_property
    def _bound(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.function.given(*self._call)

    @property
    def _given(self) -> dict[str, Any]:
        """The arguments by parameter."""
        return self._bound[0]

    @property
    def options(self) -> dict[str, Any]:
        """Of the launch."""
        return self._bound[1]

    @property
    def meta(self) -> dict[str, Any]:
        """What a grid is told that is a function: arguments and hints."""
        given, options = self._bound
        return given | {n: v for n, v in options.items() if n in HINTS}

    @cached_property
    def _prepared(self) -> tuple[JitFunction, dict[str, Any]]:
        return self.function.prepared(*self._bound)

    @property
    def kernel(self) -> JitFunction:
        """tkc's kernel of this form of arguments."""
        return self._prepared[0]

    @property
    def _values(self) -> dict[str, Any]:
        """The arguments as tkc's kernel takes them."""
        return self._prepared[1]

    @property
    def form(self) -> tuple:
        """What tells this code from another of the kernel's: constants, and kinds of arguments."""
        kept = self.function.constexpr_names
        return tuple(
            (n, str(v.dtype) if hasattr(v, "dtype") else v)
            for n, v in sorted(self._values.items())
            if n in kept or not isinstance(v, (int, float))
        )

    @cached_property
    def name(self) -> str:
        return self.function.name_of(self._given)

    def compiled_for(self, target: str | None = None) -> Compiled:
        """What tkc made of it, for this target or where the arrays are."""
        args, options = self.kernel.by_position(self._values)
        return self.kernel.compile(*args, **options, target=target)

    @cached_property
    def compiled(self) -> Compiled:
        return self.compiled_for()

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by parameter, without compile-time values."""
        fixed = self.function.constexpr_names
        return {n: v for n, v in self._given.items() if n not in fixed}

    def predicted(self, target: str) -> float | None:
        """Seconds of the launch by the model. Raises CompileError where it has none."""
        args, options = self.kernel.by_position(self._values)
        return self.kernel.predict(*args, **options, grid=self.grid, target=target).seconds

    def prepared(self) -> Callable[[], None]:
        """A function that makes the launch again."""
        args, options = self.kernel.by_position(self._values)
        return self.kernel.prepare(*args, **options, grid=self.grid)

    @property
    def asm(self) -> Assembly:
        return Assembly(self.compiled, self.compiled_for)

    def decisions_for(self, target: str | None = None) -> list[str]:
        """What the compiler chose and why, and which hints it decided without."""
        said = [
            f"hints: {n} = {self.options[n]} is the planner's choice here (strict=True keeps it)"
            for n in HINTS
            if n in self.options and not self.options.get("strict")
        ]
        return said + list(self.compiled_for(target).decisions)

    @property
    def decisions(self) -> list[str]:
        return self.decisions_for()

    @cached_property
    def _on_gpu(self) -> Compiled:
        return _for_gpu(self.compiled, self.compiled_for)

    @property
    def _interface(self) -> Interface:
        found = self._on_gpu.interface
        assert found is not None  # of a GPU's code there is one
        return found

    @property
    def metadata(self) -> SimpleNamespace:
        hints = {"num_warps": 4, "num_stages": 3, "num_ctas": 1} | self.options
        return SimpleNamespace(name=self.name, shared=self.shared, **hints)

    @property
    def shared(self) -> int:
        """Bytes of shared memory that a block takes: its own and, without any, the least that
        programs may divide by.
        """
        if self.place == "cpu":
            return 0
        own = self._interface.shared_bytes + self._on_gpu.resources.static_shared
        return max(own, SHARED_GRANULE)

    @property
    def warps(self) -> int:
        """Of a block, as tkc planned it."""
        return self._interface.threads // WARP

    @property
    def persistent(self) -> bool:
        """Whether blocks take programs in turn, as those with roles do."""
        return self._interface.persistent

    @property
    def n_regs(self) -> int:
        """Registers of a block, per thread of the num_warps that were asked for: programs multiply
        the two to learn how many blocks fit, and tkc's planner may have chosen other warps.
        """
        if self.place == "cpu":
            return 0
        taken, warps = self._on_gpu.resources.registers, self.options.get("num_warps")
        if not warps or self.options.get("strict"):
            return taken
        return -(-taken * self._interface.threads // (WARP * warps))

    @property
    def n_spills(self) -> int:
        """Of bytes that are spilled, how many words."""
        if self.place == "cpu":
            return 0
        return self._on_gpu.resources.spill_stores // 4

    @property
    def hash(self) -> str:
        """Of what was compiled: its name, its form and the compiler."""
        words = f"{self.function.cache_key} {self.form} {package_hash()}"
        return sha256(words.encode()).hexdigest()

    # ---- as Inductor launches
    @property
    def packed_metadata(self) -> SimpleNamespace:
        return self.metadata

    def launch_metadata(self, grid: Any, stream: Any, *args: Any) -> None:
        """Nothing: what hooks are told at a launch."""

    def run(
        self,
        x: int,
        y: int,
        z: int,
        stream: Any,
        function: Any,
        metadata: Any,
        launch_metadata: Any,
        enter: Any,
        leave: Any,
        *args: Any,
    ) -> None:
        """Launches a function as its compilation said, on the current stream."""
        function.run(*args, grid=(x, y, z), **self.options)

    def _init_handles(self) -> None:
        """Nothing: a kernel is loaded when it is first launched."""

    def __getitem__(self, grid: Any) -> Any:
        """Launches the function on other arguments."""
        return self.function[grid]
