"""What a kernel can say, and `tkc.language.trace.trace(fn, signature)`, which makes IR of it.

dtypes, signature   element types; what one specialization knows of its arguments
values, arrays      traced tiles, scalars and arrays: operators, broadcasting, promotion, views
operations, memory  the functions of the language; random: Philox written in it
rewrite, control    the light rewrite of for, while, if, and, or, not, and what runs in their place
combining           reductions and scans by functions of the user
state               what Python state a region changes, and how it is carried
tracer, trace       operations with source locations; the whole trace of a kernel
"""
