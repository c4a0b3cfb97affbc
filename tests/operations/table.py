"""All rows."""
from tests.operations import collective, elementwise, memory, products, shapes

CASES = [*elementwise.CASES, *shapes.CASES, *collective.CASES, *memory.CASES, *products.CASES]
