"""A sample of the recorded kernels still compiles to the recorded PTX; `make ptx-record` compiles
all of them.
"""

import json

import pytest

from tests.ptx_record.cases import cases
from tests.ptx_record.normal import digest, normalized
from tests.ptx_record.record import RECORD

SAMPLE = 8  # one case of so many


def test_names_are_left_out():
    one = '.file 1 "a.py"\n.visible .entry add(\n$for_1:\n\t.loc 1 2 3\n\tbra $for_1; // back\n'
    other = ".visible .entry plus(\n$loop_7:\n\tbra $loop_7;\n"
    assert normalized(one) == normalized(other)
    assert digest(one) != digest(other.replace("bra", "bra.uni"))


def test_every_recorded_kernel_has_a_case():
    record = json.loads(RECORD.read_text())
    assert len(record) >= 150 and set(cases()) == set(record)


@pytest.mark.parametrize("part", range(4))
def test_the_ptx_is_the_recorded_one(part):
    record = json.loads(RECORD.read_text())
    chosen = list(cases().items())[part * 2 :: SAMPLE]
    assert not [name for name, ptx in chosen if digest(ptx()) != record[name]]
