"""How outcomes of other projects' tests are chosen and counted."""

from tests.outside.cases import chosen_of_each
from tests.outside.run import Found

CASES = [f"a.py::many[{i}]" for i in range(10)] + ["a.py::one", "b.py::other[x-y]"]


def test_so_many_cases_of_each_function_run():
    some = chosen_of_each(CASES, 2)
    assert len(some) == 4 and {"a.py::one", "b.py::other[x-y]"} <= set(some)
    assert chosen_of_each(CASES, 0) == CASES
    assert chosen_of_each(CASES[::-1], 2)[-2:] == some[:2]  # by their names, in any order


def test_outcomes_stand_for_all_cases_of_their_function():
    ran = {"a.py::many[0]": ("passed", ""), "a.py::many[1]": ("failed", "why")}
    found = Found(CASES, {**ran, "c.py::": ("failed", "cannot be imported")})
    assert found.counts() == {"passed": 5, "failed": 6, "not run": 2}
    by_file = found.by_file()
    assert list(by_file) == ["a.py", "b.py", "c.py"]
    assert by_file["c.py"].counts()["failed"] == 1
