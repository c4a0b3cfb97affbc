"""What `triton` raises, under its names; all are errors of tkc as well."""

from __future__ import annotations

from tkc.errors import CompileError, LaunchError

# A kernel that cannot be compiled: tkc's own error, which shows the line.
CompilationError = CompileError
TritonError = CompileError
InterpreterError = CompileError
# a `tl.static_assert` that does not hold, and a statement that kernels cannot have
CompileTimeAssertionFailure = CompileError
UnsupportedLanguageConstruct = CompileError


class OutOfResources(LaunchError):
    """A configuration that needs more of the device than there is."""

    def __init__(self, required: int, limit: int, name: str):
        super().__init__(
            f"out of resource: {name}, required: {required}, limit: {limit}; smaller blocks or"
            " fewer stages need less"
        )
        self.required, self.limit, self.name = required, limit, name


class InvalidOption(LaunchError, AssertionError):
    """An option of a launch that no kernel can have."""


class Unsupported(CompileError):
    """A name or an option of Triton that tkc refuses."""
