"""Programs of the host that change what a kernel reads between launches: none gives a result of
before the change, and what the fingerprints once missed is found.
"""

from __future__ import annotations

import pytest

from tkc.fuzz.host import HOLDERS, check, program
from tkc.runtime import fingerprint
from tkc.runtime.jit import JitFunction

PROGRAMS = 20  # of a case


@pytest.mark.parametrize("batch", range(14))
def test_launches_see_changes(batch):
    for seed in range(PROGRAMS * batch, PROGRAMS * batch + PROGRAMS):
        outcome = check(program(seed))
        assert not outcome.faults, f"program {seed}: {outcome.faults[0]}"


def test_a_seed_is_a_program():
    assert str(program(3)) == str(program(3)) != str(program(4))


def test_every_holder_is_written():
    sources = [program(seed).source for seed in range(400)]
    for name, holder in HOLDERS.items():
        opening = holder.setup.format(n="s0", v="@").split("@")[0]
        assert any(opening in source for source in sources), name


def _without_attributes(self, label, root, chains):
    """Attributes of objects were not looked at."""


def _by_name(value):
    """Objects were told apart by what they are called."""
    return f"object {type(value).__qualname__}".encode()


FIXES = {
    "attributes of objects": ("_attributes", _without_attributes),
    "what objects hold": ("_object", lambda self, value: _by_name(value)),
    "what copies are made of": ("_object", lambda self, value: self._class(type(value))),
    "attributes of modules": ("_module", lambda self, name, module, chains: None),
    "what changed in place": ("changed", lambda self: False),
    "parts of functions": ("_watch_parts", lambda self, fn: None),
}


@pytest.mark.parametrize("name", FIXES)
def test_what_fingerprints_missed_is_found(name, monkeypatch):
    """Each part of the recording of what was read is taken out."""
    monkeypatch.setattr(fingerprint.Fingerprint, *FIXES[name])
    assert any(check(program(seed)).faults for seed in range(8 * PROGRAMS))


# what was missed -> (words of programs that change it, what the fingerprints did before)
MISSED = {
    "which dictionary holds attributes": (".__dict__ = ", "Fingerprint._watch_dict", lambda *_: 0),
    "what functions and classes are called": ("__qualname__ = ", "_names_of", lambda holder: ()),
    "what is registered": (".register(", "_registered", lambda cls: set()),
    "signs of NaNs": ("-math.nan", "text_of", float.hex),
}


@pytest.mark.parametrize("name", MISSED)
def test_what_was_missed_of_objects_is_found(name, monkeypatch):
    words, of, before = MISSED[name]
    programs = [p for p in map(program, range(60 * PROGRAMS)) if words in str(p)]
    assert not any(check(p).faults for p in programs[:PROGRAMS])
    monkeypatch.setattr(f"tkc.runtime.fingerprint.{of}", before)
    assert any(check(p).faults for p in programs)


def test_files_that_were_missed_are_found(monkeypatch):
    """What a function gave was taken to stay where it holds nothing itself."""
    monkeypatch.setattr(fingerprint, "READS_OF_PATHS", frozenset())
    monkeypatch.setattr(fingerprint, "_reads_outside", lambda value: False)
    programs = (p for p in map(program, range(20 * PROGRAMS)) if "write_text" in p.source)
    assert any(check(p).faults for p in programs)


def test_a_way_to_launch_that_does_not_look_is_found(monkeypatch):
    """`prepare` gave what an earlier launch had compiled."""
    prepare = JitFunction.prepare

    def without_looking(self, *args, **options):
        with monkeypatch.context() as patch:
            patch.setattr(self, "forget_if_rebound", lambda: None)
            return prepare(self, *args, **options)

    monkeypatch.setattr(JitFunction, "prepare", without_looking)
    faults = (f for seed in range(8 * PROGRAMS) for f in check(program(seed)).faults)
    assert "by kernel.prepare(…)()" in next(faults)
