"""Emission of PTX: `emit.emit(module, target)` turns level-4 IR into text; one file an instruction
family.
"""
