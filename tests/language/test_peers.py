"""Arrays of several ranks as one argument, signals and waits: as threads of one process."""

import threading
import time

import numpy as np
import pytest

import tkc
from tests.ranks import together
from tkc.ir.interface import Interface


@tkc.jit
def shift(x: tkc.peers, flags: tkc.peers, y, N: tkc.constexpr):
    """Gives each rank what the next one has."""
    me, W, i = tkc.rank(), tkc.world(), tkc.program_id(0)
    tkc.signal(flags[(me - 1) % W], i)
    tkc.wait(flags[me], i)
    tkc.store(y, (i * N,), tkc.load(x[(me + 1) % W], (i * N,), (N,)))


@tkc.jit
def spread(x, every: tkc.peers, N: tkc.constexpr):
    """Writes a row to the array of the rank with the program's number."""
    i = tkc.program_id(0)
    tkc.store(every[i], (tkc.rank(), 0), tkc.load(x, (i, 0), (1, N)))


@tkc.jit
def count(flags: tkc.peers, out, times):
    """Every rank adds to the number of rank 0, which waits for all of them."""
    tkc.signal(flags[0], 0, times, how="add")
    if tkc.rank() == 0:
        tkc.wait(flags[0], 0, times * tkc.world())
        tkc.store(out, (0,), flags[0][0])


def arrays(world, shape, dtype=np.float32):
    rng = np.random.default_rng(world)
    return [rng.normal(size=shape).astype(dtype) for _ in range(world)]


def zeros(world, shape, dtype=np.int32):
    return [np.zeros(shape, dtype) for _ in range(world)]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_as_threads(world):
    x, flags, y = arrays(world, 30), zeros(world, 4), zeros(world, 30, np.float32)
    together(lambda r, lost: shift[4](tkc.peers(x, r, lost), tkc.peers(flags, r), y[r], 8), world)
    assert all((y[r] == x[(r + 1) % world]).all() for r in range(world))


def test_a_rank_may_be_a_traced_number():
    x, every = arrays(3, (3, 20)), zeros(3, (3, 20), np.float32)
    for r in range(3):
        spread[3](x[r], tkc.peers(every, r), 20)
    assert all((every[r][s] == x[s][r]).all() for r in range(3) for s in range(3))


def test_strides_are_those_of_the_arrays():
    x, every = arrays(2, (2, 20)), [e.T for e in zeros(2, (20, 2), np.float32)]
    for r in range(2):
        spread[2](x[r], tkc.peers(every, r), 20)
    assert all((every[r][s] == x[s][r]).all() for r in range(2) for s in range(2))


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_signals_that_add(dtype):
    flags, out = zeros(3, 1, dtype), np.zeros(1, dtype)
    together(lambda r, lost: count[1](tkc.peers(flags, r, lost), out, 5), 3)
    assert out[0] == 15


def test_numbers_may_wrap():
    """Half of all numbers are before another one."""

    @tkc.jit
    def past(flags: tkc.peers, value):
        tkc.wait(flags[tkc.rank()], 0, value)

    past[1](tkc.peers([np.array([-(2**31) + 3], np.int32)], 0), 2**31 - 5)


@pytest.mark.parametrize("variable", ["TKC_INTERPRET", "TKC_SIM"])
def test_the_simulators_know_peers(variable, monkeypatch):
    monkeypatch.setenv(variable, "1")
    x, every = arrays(2, (2, 20)), zeros(2, (2, 20), np.float32)
    for r in range(2):
        spread[2](x[r], tkc.peers(every, r), 20)
    assert all((every[r][s] == x[s][r]).all() for r in range(2) for s in range(2))


@pytest.mark.parametrize("world", [2, 3])
def test_waits_of_the_interpreter_end_by_other_threads(world, monkeypatch):
    monkeypatch.setenv("TKC_INTERPRET", "1")
    x, flags, y = arrays(world, 30), zeros(world, 4), zeros(world, 30, np.float32)
    together(lambda r, lost: shift[4](tkc.peers(x, r), tkc.peers(flags, r), y[r], 8), world)
    assert all((y[r] == x[(r + 1) % world]).all() for r in range(world))


def test_the_code_for_a_gpu():
    made = shift.compile(
        tkc.peers(["f32[32]"] * 3, 1), tkc.peers(["i32[4]"] * 3, 1), "f32[32]", 8, target="sm_90a"
    )
    assert made.ptx.count("st.release.sys.global.b32") == 1
    assert made.ptx.count("ld.acquire.sys.global.b32") == 1
    interface = Interface.from_json(made.interface.to_json())
    # the flags of ranks 0 and 1, x of rank 2, y: an address an array that this rank uses
    assert sorted(p.argument for p in interface.parameters if p.kind == "pointer") == [2, 3, 4, 6]


def test_a_traced_rank_chooses_an_address():
    made = spread.compile("f32[3, 512]", tkc.peers(["f32[3, 512]"] * 3, 1), 512, target="sm_90a")
    assert sum(p.kind == "pointer" for p in made.interface.parameters) == 4
    assert "st.global.v4.b32" in made.ptx  # the choice keeps what is known of the arrays


def test_launches_are_compiled_once_for_a_rank():
    x, every = arrays(2, (2, 20)), zeros(2, (2, 20), np.float32)
    other = zeros(2, (2, 20), np.float32)
    kernel = tkc.jit(spread.fn)
    for _ in range(3):
        for given in (every, other):
            kernel[2](x[0], tkc.peers(given, 0), 20)
    assert len(kernel._compiled) == 1
    kernel[2](x[0], tkc.peers(every, 1), 20)
    assert len(kernel._compiled) == 2


def test_a_launch_that_was_made_is_found_again():
    x, every = arrays(2, (2, 20)), zeros(2, (2, 20), np.float32)
    kernel, given = tkc.jit(spread.fn), tkc.peers(every, 0)
    for _ in range(3):
        kernel[2](x[0], given, 20)
    assert kernel[2].__self__.entries  # of the launch cache
    every[1][:] = 0
    kernel[2](x[0], given, 20)
    assert (every[1][0] == x[0][1]).all()
    fresh = zeros(2, (2, 20), np.float32)
    kernel[2](x[0], tkc.peers(fresh, 0), 20)
    assert (fresh[1][0] == x[0][1]).all()


def test_an_exported_launch_takes_an_array_a_rank(tmp_path):
    tkc.export(
        spread, "f32[2, 32]", tkc.peers(["f32[2, 32]"] * 2, 1), 32, target="sm_90a", path=tmp_path
    )
    header = (tmp_path / "spread.h").read_text()
    assert "every_0" in header and "every_1" in header


# ---- a rank that dies
def test_a_rank_that_dies_ends_those_that_wait():
    @tkc.jit
    def wait_for_all(flags: tkc.peers):
        for r in tkc.static_range(tkc.world()):
            tkc.signal(flags[r], tkc.rank())
        for r in tkc.static_range(tkc.world()):
            tkc.wait(flags[tkc.rank()], r)

    flags, ended = zeros(3, 3), {}

    def rank(r, lost):
        if r == 2:
            raise RuntimeError("no memory left")
        try:
            wait_for_all[1](tkc.peers(flags, r, lost))
        except tkc.PeerError as error:
            ended[r] = str(error)

    start = time.monotonic()
    with pytest.raises(RuntimeError, match="no memory left"):
        together(rank, 3)
    assert time.monotonic() - start < 20
    assert set(ended) == {0, 1}
    assert all("rank 2 has died" in text and "no memory left" in text for text in ended.values())


# ---- what is refused
def refused(text, error, *args, kernel=spread):
    with pytest.raises(error, match=text):
        kernel.compile(*args, target="cpu")


def test_peers_that_are_none():
    refused("pass tkc.peers", tkc.LaunchError, "f32[2, 8]", "f32[2, 8]", 8)
    refused(
        "peers are alike, and rank 1 has float32.*where rank 0",
        tkc.LaunchError,
        "f32[2, 8]",
        tkc.peers(["f32[2, 8]", "f32[2, 9]"], 1),
        8,
    )
    with pytest.raises(tkc.LaunchError, match="rank is 0 to 1"):
        tkc.peers(["f32[2]", "f32[2]"], 2)
    with pytest.raises(tkc.LaunchError, match="one array a rank, 1 to 64"):
        tkc.peers([], 0)


def test_peers_of_two_groups():
    @tkc.jit
    def both(x: tkc.peers, y: tkc.peers):
        tkc.signal(x[0], 0, len(y))

    refused(
        "of rank 1 of 2, others of rank 0 of 2",
        tkc.CompileError,
        tkc.peers(["i32[1]"] * 2, 0),
        tkc.peers(["i32[1]"] * 2, 1),
        kernel=both,
    )


@pytest.mark.parametrize(
    "body, text",
    [
        ("tkc.store(p[2], (0,), 1)", "`p` has 2 ranks; rank 2 is none of them"),
        ("tkc.store(p[1.5], (0,), 1)", "indexed by one integer"),
        ("tkc.signal(p, 0)", r"write peers\[r\]"),
        ("tkc.signal(p[0], 0, how='or')", '"set" or "add"'),
        ("tkc.signal(p[0], (0, 1))", "takes 1 offsets"),
        ("tkc.wait(x, 0)", "takes an array of int32"),
        ("tkc.wait(p[0], tkc.arange(4))", "a place is an integer"),
        ("tkc.wait(3, 0)", "takes an array of integers, got 3"),
        ("[a for a in p]", "static_range"),
    ],
)
def test_errors_say_where_and_what_else(body, text, tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text(f"import tkc\n\n\n@tkc.jit\ndef wrong(p: tkc.peers, x):\n    {body}\n")
    space = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    with pytest.raises(tkc.CompileError, match=text) as found:
        space["wrong"].compile(tkc.peers(["i32[8]"] * 2, 0), "f32[8]", target="cpu")
    assert "wrong.py:6" in str(found.value)


def test_a_rank_is_known_with_peers_alone():
    @tkc.jit
    def alone(x):
        tkc.store(x, (0,), tkc.rank())

    refused("annotate a parameter `x: tkc.peers`", tkc.CompileError, "i32[1]", kernel=alone)


def test_two_launches_of_ranks_share_the_threads():
    """Programs of one rank that stand in the queue of threads do not hold up another one."""
    x, flags, y = arrays(4, 64), zeros(4, 8), zeros(4, 64, np.float32)

    def rank(r, lost):
        for turn in range(6):
            flags_of_turn = [f[turn : turn + 1] for f in many]
            shift[1](tkc.peers(x, r, lost), tkc.peers(flags_of_turn, r), y[r], 64)

    many = zeros(4, 6)
    done = threading.Event()
    threading.Thread(target=lambda: (together(rank, 4), done.set()), daemon=True).start()
    assert done.wait(120) and flags is not None
    assert all((y[r] == x[(r + 1) % 4]).all() for r in range(4))
