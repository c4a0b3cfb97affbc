"""The runner of parts on several ranks: one that hangs, dies or is wrong costs itself alone."""

import os
import sys
import time

from benchmarks import ranks


def wrong(rank):
    if rank == 1:
        raise ValueError("not so")


PARTS = {
    "first": lambda rank: None,
    "hangs": lambda rank: time.sleep(60 * (rank == 0)),
    "wrong": wrong,
    "dies": lambda rank: rank == 1 and os._exit(7),
    "last": lambda rank: None,
}


def test_a_part_that_hangs_or_dies_costs_itself_alone(capfd):
    found = ranks.run("tests.benchmarks.test_ranks", PARTS, limit=60, each=1.5)
    assert list(found) == list(PARTS)
    assert found["first"] == found["last"] == "right"
    assert found["hangs"] == found["dies"] == "hung or died"
    assert found["wrong"] == "wrong: on another rank" and "not so" in capfd.readouterr().out


def test_what_there_is_no_time_for_is_said():
    assert ranks.run("tests.benchmarks.test_ranks", ["first"], limit=0, each=1) == {
        "first": "not run: no time left"
    }


def meeting(room):
    """Both ranks leave a file of each part, and wait for that of the other one."""
    calls = iter(range(100))

    def agree(failed):
        call, rank = next(calls), int(os.environ["RANK"])
        files = [f"{room}.{call}.{r}" for r in range(2)]
        with open(files[rank] + ".new", "w") as file:
            file.write(str(int(failed)))
        os.replace(files[rank] + ".new", files[rank])
        while not all(os.path.exists(f) for f in files):
            time.sleep(0.01)
        said = []
        for f in files:
            with open(f) as file:
                said.append(file.read())
        return "1" in said

    return agree


if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    agree = meeting(os.environ["RANKS_STATE"])
    ranks.work(sys.argv[2:], PARTS, rank, agree)
    ranks.end()
