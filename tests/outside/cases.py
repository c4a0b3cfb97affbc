"""Which cases of other projects' tests run."""

from zlib import crc32


def function_of(case: str) -> str:
    """A case's test function, with its file."""
    return case.split("[")[0]


def chosen(cases: list[str], count: int) -> list[str]:
    """Some of the cases, by their names alone; all where the count is 0."""
    return sorted(cases, key=lambda c: crc32(c.encode()))[:count] if count else cases


def chosen_of_each(cases: list[str], each: int) -> list[str]:
    """So many cases of each test function."""
    by_function: dict[str, list[str]] = {}
    for case in cases:
        by_function.setdefault(function_of(case), []).append(case)
    return [c for group in by_function.values() for c in chosen(group, each)]
