"""Random kernels without undefined behaviour, run at every level against level 0: `python -m tkc.fuzz --seeds 0:100`.

`grammar` writes a kernel from a seed as Python source, `check` runs it through every level, the machine code of the CPU and other plans,
`mutation` breaks texts of IR.
"""
