"""Every form of wait, fence, arrival, copy, matrix and atomic instruction means on this GPU what
tkc believes (tests/gpu/forms).
"""

import json
import os
import selectors
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.forms import BELIEFS

# for one belief: a kernel of milliseconds, or the first one, which starts Python and the driver
SECONDS = 30
ROOT = Path(__file__).parents[2]


class Worker:
    """A child that runs beliefs one after the other; after a deadline or an error of the device the
    next belief gets a new child.
    """

    child: subprocess.Popen | None = None

    def ask(self, name: str) -> dict:
        if self.child is None or self.child.poll() is not None:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "tests.gpu.forms.worker"],
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(
                        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
                    ),
                },
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        self.child.stdin.write(name + "\n")
        self.child.stdin.flush()
        with selectors.DefaultSelector() as ready:
            ready.register(self.child.stdout, selectors.EVENT_READ)
            line = self.child.stdout.readline() if ready.select(SECONDS) else None
        answer = (
            json.loads(line)
            if line
            else {
                "wrong": (
                    f"no answer within {SECONDS} s: the kernel hangs"
                    if line is None
                    else f"the child ended with {self.child.wait()}"
                )
            }
        )
        if not line or "dead until" in (answer["wrong"] or ""):
            self.end()
        return answer

    def end(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child.wait()
        self.child = None


@pytest.fixture(scope="session")
def worker():
    w = Worker()
    yield w
    w.end()


@pytest.mark.parametrize("name", BELIEFS)
def test_form(worker, name, record_property):
    answer = worker.ask(name)
    if answer.get("told"):
        record_property("told", answer["told"])
        print(f"{name}: {answer['told']}")
    assert not answer["wrong"], answer["wrong"]
