"""Arrays of halves (h), floats (f) and integers (n), of one axis, two or three, that tests trace
kernels for.
"""

import tkc
from tests.language.kernels import array
from tests.passes.kernels import aligned

h1, f1, n1 = array(tkc.float16), array(tkc.float32), array(tkc.int32)
h2, f2, n2 = aligned(tkc.float16, 2), aligned(tkc.float32, 2), aligned(tkc.int32, 2)
h3, f3 = aligned(tkc.float16, 3), aligned(tkc.float32, 3)
