"""The tests of tests/operations and tests/language that run on a GPU too."""

from tests.language.test_inline_ptx import test_on_a_gpu  # noqa: F401
from tests.operations.test_programs import (  # noqa: F401
    place,
    test_arguments_may_overlap,
    test_axes_beyond_32_bits,
    test_launches_that_overlap_see_what_the_one_before_wrote,
    test_offsets_beyond_32_bits,
    test_print_and_device_assert,
    test_programs_wait_for_the_one_before,
    test_random_numbers,
    test_the_last_program_sees_what_all_wrote,
)
