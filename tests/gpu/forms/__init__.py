"""What the hardware does, form by form.

Small kernels in PTX whose results would be others if tkc believed something wrong about an
instruction.

    opcodes.py     the forms that the emitter can spell; tests/codegen/ptx/test_forms.py finds a new
                   one in the emitter and in what it emits
    belief.py      a kernel with its inputs and what must come out; running it through tkc's own
                   driver layer
    worker.py      the child process that runs them: one that hangs or traps fails alone
                   (tests/gpu/test_forms.py)
    the rest       the beliefs, a family a file; expected results come from the simulator's rules
                   and from the layouts of tkc/ir

A belief that is called control_… leaves something out and fails never: it says how often that was
seen to matter.
"""

from importlib import import_module

from tests.gpu.forms.belief import BELIEFS

for family in ("mbarriers", "barriers", "copies", "tensor", "dots", "atomics"):
    import_module(f"tests.gpu.forms.{family}")

__all__ = ["BELIEFS"]
