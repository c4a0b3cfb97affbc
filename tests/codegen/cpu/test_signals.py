"""Ctrl-C ends a kernel: in a child process that gets SIGINT while its kernel would run for ever."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WITHIN_S = 3.0  # from the signal to KeyboardInterrupt: about 0.1 s where the machine is not busy
PROGRAM = '''
import signal, sys, threading, time
import numpy as np
from tkc.codegen.cpu import compile
from tkc.ir.text import parse

ENDLESS = """tile.kernel @endless(%out: !tile.array<?xi32>, %first: i32) {
  %p = tile.program_id 0 : i32
  %zero = tile.constant 0 : i32
  %one = tile.constant 1 : i32
  %t = tile.splat %one : (i32) -> !tile.tile<1xi32>
  tile.store %out[%p] %t {extents = array<i64: 1>} : (!tile.array<?xi32>, i32, !tile.tile<1xi32>)
  %endless = tile.ge %p, %first : i32
  LOOP
  tile.return
}"""
WHILE = """%last = scf.while (%i = %zero) : (i32) -> i32 {
    scf.condition(%endless) %i : i32
  } do {
  ^bb0(%j : i32):
    BODY
    %next = tile.add %j, %one : i32
    scf.yield %next : i32
  }"""
FOR = """scf.if %endless {
    %begin = tile.constant 0 : i64
    %step = tile.constant 1 : i64
    %end = tile.constant 4611686018427387904 : i64
    scf.for %i = %begin to %end step %step : i64 {
      scf.yield
    }
  }"""
threads, programs, first, case = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
text = ENDLESS.replace("LOOP", FOR if case == "for" else WHILE)
text = text.replace("BODY", 'tile.print "p"[%p] : (i32)' if case == "print" else "")
program = compile(parse(text))
out = np.zeros(programs, np.int32)

def late():
    while not out.any():
        time.sleep(0.01)
    time.sleep(0.3)
    print("running", flush=True)

def handler(number, frame):
    """A handler that launches, while the kernel it interrupts is suspended."""
    other = np.zeros(1, np.int32)
    program.run([other, 1], (1,))
    assert other[0] == 1
    raise TimeoutError("of the handler")

# whoever started the tests in the background may have had them ignore the signal
signal.signal(signal.SIGINT, handler if case == "handler" else signal.default_int_handler)
threading.Thread(target=late, daemon=True).start()
try:
    program.run([out, first], (programs,), threads=threads, out=lambda text: None)
    print("ended")
except (KeyboardInterrupt, TimeoutError) as e:
    print(type(e).__name__, flush=True)
again = np.zeros(5, np.int32)
program.run([again, 5], (5,), threads=threads)
print("again", *again, flush=True)
'''


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT to a child")
@pytest.mark.parametrize(
    "threads, programs, first, case",
    [
        pytest.param(1, 1, 0, "", id="one thread"),
        pytest.param(1, 1, 0, "for", id="a loop that counts"),
        pytest.param(3, 50, 0, "", id="several threads"),
        pytest.param(2, 2, 1, "", id="one program ended"),
        pytest.param(1, 1, 0, "print", id="a kernel that prints"),
        pytest.param(2, 2, 0, "handler", id="another handler, which launches a kernel"),
    ],
)
def test_a_signal_ends_a_kernel(threads, programs, first, case):
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, (threads, programs, first)), case],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout.readline() == "running\n", child.stderr.read()
        sent = time.monotonic()
        child.send_signal(signal.SIGINT)
        raised = child.stdout.readline()
        assert time.monotonic() - sent < WITHIN_S
        said, errors = child.stdout.read(), child.stderr.read()
    finally:
        child.kill()
        child.wait()
    assert raised == ("TimeoutError\n" if case == "handler" else "KeyboardInterrupt\n")
    assert (errors, said) == ("", "again 1 1 1 1 1\n")


def test_what_a_print_raises_ends_the_launch_and_is_raised():
    import numpy as np

    from tkc.codegen.cpu import compile
    from tkc.ir.text import parse

    program = compile(
        parse("""tile.kernel @k(%n: i32) {
          tile.print "n"[%n] : (i32)
          tile.return
        }""")
    )

    def refuse(text):
        raise BrokenPipeError(text)

    with pytest.raises(BrokenPipeError):
        program.run([np.int32(3)], (4,), out=refuse)
