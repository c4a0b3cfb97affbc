"""All rows: CASES run everywhere, MORE on a GPU, where the whole product of types, operations and
shapes is asked for; one in twelve of them at level 0 and on the CPU too.
"""

from tests.operations import collective, edges, elementwise, memory, products, shapes, special

CASES = [
    *elementwise.CASES,
    *edges.CASES,
    *special.CASES,
    *shapes.CASES,
    *collective.CASES,
    *memory.CASES,
    *products.CASES,
]
MORE = [*shapes.MORE, *collective.MORE, *memory.MORE, *products.MORE]
