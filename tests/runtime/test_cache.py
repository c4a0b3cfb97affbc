"""The disk cache under damage, races and hostile directories; the key under the change of each
thing it stands for.
"""

import errno
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import tkc
from benchmarks import trials
from tkc.errors import CacheError
from tkc.runtime import cache, fingerprint
from tkc.runtime.cache import DiskCache
from tkc.runtime.jit import JitFunction
from tkc.runtime.launch_cache import BASES, CONTENTS, FUNCTION_PARTS

KEY = "ab" * 32
PARTS = {"meta": b"{}", "ptx": b"// text\n" * 50, "empty": b""}
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def disk(tmp_path):
    return DiskCache(tmp_path / "cache")


def test_what_is_put_is_got(disk):
    assert disk.get(KEY) is None
    disk.put(KEY, PARTS)
    assert disk.get(KEY) == PARTS
    assert [p.name for p in disk.path(KEY).parent.iterdir()] == [KEY + ".tkc"]


def test_any_damage_is_a_miss_and_is_cleared_away(disk):
    disk.put(KEY, PARTS)
    whole, r = disk.path(KEY).read_bytes(), random.Random(0)
    damaged = [whole[:n] for n in (0, 1, 7, 8, 40, 44, 60, len(whole) - 1)] + [whole + b"x"]
    for at in {*range(60), *r.sample(range(len(whole)), 60)}:
        damaged.append(whole[:at] + bytes([whole[at] ^ 1 << r.randrange(8)]) + whole[at + 1 :])
    for data in damaged:
        disk.path(KEY).write_bytes(data)
        assert disk.get(KEY) is None and not disk.path(KEY).exists()
    disk.put(KEY, PARTS)
    assert disk.get(KEY) == PARTS


def test_an_entry_under_another_name_is_a_miss(disk):
    other = "ab" + "cd" * 31
    disk.put(KEY, PARTS)
    os.rename(disk.path(KEY), disk.path(other))
    assert disk.get(other) is None


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize(
    "spoil,message",
    [
        (lambda p: (p.mkdir(), os.chmod(p, 0o777)), "written by others"),
        (lambda p: p.symlink_to(p.parent), "link"),
        (lambda p: p.write_text(""), "cannot make"),
    ],
)
def test_a_directory_that_others_could_change_is_refused(tmp_path, spoil, message):
    spoil(tmp_path / "c")
    disk = DiskCache(tmp_path / "c")
    with pytest.raises(CacheError, match=message):
        disk.check()
    with pytest.warns(RuntimeWarning, match="without a cache"):
        disk.put(KEY, PARTS)
    assert disk.get(KEY) is None  # and no second warning


def test_the_directory_is_ours_alone(disk):
    disk.put(KEY, PARTS)
    assert disk.root.stat().st_mode & 0o777 == 0o700 and disk.path(KEY).stat().st_mode & 0o077 == 0


def test_a_link_instead_of_an_entry_is_not_followed(disk, tmp_path):
    disk.put(KEY, PARTS)
    target = tmp_path / "elsewhere"
    os.rename(disk.path(KEY), target)
    disk.path(KEY).symlink_to(target)
    assert disk.get(KEY) is None


@pytest.mark.parametrize(
    "call,error",
    [
        ("os.replace", OSError(16, "busy")),
        ("os.fdopen", OSError(28, "no space")),
        ("tempfile.mkstemp", OSError(30, "read-only")),
    ],
)
def test_a_disk_that_fails_costs_only_the_entry(disk, monkeypatch, call, error):
    def fails(*a, **k):
        raise error

    monkeypatch.setattr(f"tkc.runtime.cache.{call}", fails)
    disk.put(KEY, PARTS)
    monkeypatch.undo()
    assert disk.get(KEY) is None and not [
        p for p in disk.path(KEY).parent.iterdir() if p.suffix == ".tkc"
    ]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "number",
    [errno.ENOSPC, errno.EBUSY, errno.EIO, errno.ENOENT, errno.EACCES, errno.EROFS, errno.ESTALE],
)
@pytest.mark.parametrize(
    "call",
    [
        "os.open",
        "os.fdopen",
        "os.replace",
        "os.utime",
        "os.unlink",
        "os.scandir",
        "os.lstat",
        "tempfile.mkstemp",
        "Path.mkdir",
    ],
)
def test_any_call_may_fail_in_any_way(tmp_path, monkeypatch, call, number):
    """Nothing is raised, nothing wrong is read, and afterwards the cache works."""
    disk = DiskCache(tmp_path / "c")
    disk.put(KEY, PARTS)

    def fails(*a, **k):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(f"tkc.runtime.cache.{call}", fails)
    other = "cd" * 32
    for _ in range(2):
        disk.put(other, PARTS)
        assert disk.get(KEY) in (None, PARTS) and disk.get(other) in (None, PARTS)
    monkeypatch.undo()
    fresh = DiskCache(tmp_path / "c")
    fresh.put(other, PARTS)
    assert fresh.get(other) == PARTS and not list((tmp_path / "c").glob("*/.new-*"))


def test_the_oldest_entries_go_first(tmp_path):
    disk = DiskCache(tmp_path / "c", megabytes=0)
    keys = [f"ab{i:062x}" for i in range(8)]
    for i, k in enumerate(keys):
        disk.put(k, {"data": bytes(300_000)})
        os.utime(disk.path(k), (i, i))
    assert [disk.path(k).exists() for k in keys] == [False] * 5 + [True] * 3 and disk.get(keys[-1])


def test_many_processes_share_a_directory(tmp_path):
    program = textwrap.dedent("""
        import random, sys
        from pathlib import Path
        from tkc.runtime.cache import DiskCache
        disk, r = DiskCache(Path(sys.argv[1])), random.Random(int(sys.argv[2]))
        keys = [f"{i:064x}" for i in range(60)]
        for _ in range(200):
            k = r.choice(keys)
            data = k.encode() * (1 + int(k, 16))
            if r.random() < .5: disk.put(k, {"data": data})
            else:
                found = disk.get(k)
                assert found is None or found == {"data": data}, k
        """)
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "c"), str(i)], cwd=ROOT)
        for i in range(6)
    ]
    assert [p.wait() for p in running] == [0] * 6
    assert not list((tmp_path / "c").glob("*/.new-*"))


def test_a_writer_that_is_killed_leaves_no_bad_entry(tmp_path):
    program = (
        "import sys\nfrom pathlib import Path\nfrom tkc.runtime.cache import DiskCache\nd ="
        f" DiskCache(Path(sys.argv[1]))\nprint('go', flush=True)\nwhile 1: d.put('{KEY}', {{'data':"
        " bytes(1000000)})"
    )
    disk = DiskCache(tmp_path / "c")
    for round in range(5):
        p = subprocess.Popen(
            [sys.executable, "-c", program, str(disk.root)], cwd=ROOT, stdout=subprocess.PIPE
        )
        p.stdout.readline()
        import time

        time.sleep(0.01 * round + 0.003)
        p.kill()
        p.wait()
        p.stdout.close()
        assert disk.get(KEY) in (None, {"data": bytes(1000000)})


def test_ptx_is_the_same_whatever_the_hash_seed():
    assert len({trials.ptx_of_suite(seed) for seed in (0, 1, 77)}) == 1


def test_trials_in_small(tmp_path):
    assert trials.shared_directory(tmp_path / "a", processes=4, keys=50, rounds=100) == 0
    assert trials.killed_writers(tmp_path / "b", kills=8) == 0
    assert trials.forked_children(tmp_path / "c", children=3) == 0


def test_off(monkeypatch):
    monkeypatch.setenv("TKC_CACHE", "0")
    assert cache.disk() is None


def test_a_size_that_is_no_number_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("TKC_CACHE_DIR", str(tmp_path / "c"))
    monkeypatch.setenv("TKC_CACHE_SIZE", "large")
    with pytest.warns(RuntimeWarning, match="a number of MiB, got 'large'"):
        assert cache.disk() is cache.disk()


def test_nothing_here_can_run_what_it_reads():
    for p in (ROOT / "tkc").rglob("*.py"):
        words = p.read_text().split()
        assert not {"pickle", "cloudpickle", "marshal", "dill"} & set(words), p


# --------------------------------------------------------------------------------------------------
BASE = '''
"""A module."""
import math
import tkc
from other import shift

FACTOR = 2.0
TABLE = (1, 2, {"a": 3})

def helper(x): return x * FACTOR + math.pi

def outer(step):
    @tkc.jit
    def kernel(x, out, n, BLOCK: tkc.constexpr = 64):
        """Doubles."""
        i = tkc.program_id(0) * BLOCK + tkc.arange(BLOCK)
        value = shift(helper(tkc.load(x.ptr + i, mask=i < n))) + TABLE[1] + step
        tkc.store(out.ptr + i, value, mask=i < n)
    return kernel

kernel = outer(1)
'''
OTHER = "AMOUNT = 5\ndef shift(x): return x + AMOUNT\n"
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from m import kernel
infos = kernel._describe(kernel._bind("f32[64]", "f32[64]", "i32")[0])
print(kernel._key(kernel._specialize(infos, ()), "sm_80"))
assert "xdsl" not in sys.modules
"""


def key_of(folder: Path, text=BASE, other=OTHER, **environment) -> str:
    """The key of the kernel, in a process of its own."""
    folder.mkdir(exist_ok=True)
    (folder / "m.py").write_text(text)
    (folder / "other.py").write_text(other)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return key_of(tmp_path_factory.mktemp("base"))


@pytest.mark.parametrize(
    "old,new",
    [
        ("* BLOCK +", "* BLOCK + 0 +"),
        ("x * FACTOR", "FACTOR * x"),
        ("FACTOR = 2.0", "FACTOR = 2"),
        ('"a": 3', '"a": 4'),
        ("outer(1)", "outer(2)"),
        ("outer(1)", "outer(True)"),
        ("= 64", "= 32"),
        ("math.pi", "math.e"),
    ],
)
def test_a_change_of_meaning_changes_the_key(tmp_path, base, old, new):
    assert old in BASE and key_of(tmp_path / "m", BASE.replace(old, new)) != base


@pytest.mark.parametrize("old,new", [("AMOUNT = 5", "AMOUNT = 6"), ("x + AMOUNT", "AMOUNT + x")])
def test_a_change_in_a_helper_of_another_module_changes_the_key(tmp_path, base, old, new):
    assert key_of(tmp_path / "m", other=OTHER.replace(old, new)) != base


def test_a_variable_that_a_compilation_reads_changes_the_key(tmp_path, base):
    assert key_of(tmp_path / "m", TKC_PTXAS="/another/ptxas") != base


@pytest.mark.parametrize(
    "text,environment",
    [
        (BASE, {}),
        (BASE.replace("# ", "#"), {"PYTHONHASHSEED": "7"}),
        (BASE.replace("\n        i =", "\n        # a comment\n        i ="), {}),
        (BASE.replace("Doubles.", "Twice."), {}),
        ("\n\n" + BASE, {"TKC_CACHE_DIR": "/nowhere"}),
        (BASE + "\nUNUSED = 3\n", {"TKC_DUMP": "0"}),
        (BASE, {"TKC_VALIDATE": "1"}),
    ],
)
def test_what_has_no_meaning_does_not(tmp_path, base, text, environment):
    assert key_of(tmp_path / "elsewhere", text, **environment) == base


def _kernel(value):
    def kernel(x):
        return value

    return JitFunction(kernel)


class Odd:
    """Has no stable spelling: nothing shows what it holds."""

    __slots__ = ()


def _arguments(k, *texts):
    return k._specialize(k._describe(k._bind(*texts)[0]), ())


def test_each_part_of_a_specialization_counts():
    def kernel(x, y, n, C: tkc.constexpr = 1):
        pass

    k = JitFunction(kernel)
    from tkc.runtime.specialize import Specialization

    s = _arguments(k, "f32[64]", "f32[64]", "i32")
    others = [
        _arguments(k, *t)
        for t in (
            ("bf16[64]", "f32[64]", "i32"),
            ("f32[63]", "f32[64]", "i32"),
            ("f32[64:2]", "f32[64]", "i32"),
            ("f32[8,64]", "f32[64]", "i32"),
            ("f32[64]", "f32[64]", "i64"),
            ("f32[64]", "f32[64]", "i32:16"),
            ("f32[64]", "f32[64]", 1),
            ("f32[64]", "f32[64]", "i32", 2),
            ("f32[64]", "f32[64]", "i32", True),
            ("f32[64]", "f32[64]", "i32", 1.0),
            ("f32[64]", "f32[64]", "f32"),
            ("f32[1073741824]", "f32[64]", "i32"),
        )
    ]
    others += [
        Specialization(s.arguments, ((0, 1),)),
        Specialization(s.arguments, (), (("num_warps", 8),)),
    ]
    keys = [k._key(t, "sm_80") for t in [s, *others]] + [k._key(s, "sm_89"), k._key(s, "cpu")]
    assert None not in keys and len(set(keys)) == len(keys)


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages", "packages"])
def test_what_is_installed_counts_by_its_name(folder, tmp_path, monkeypatch):
    """With pip, or with the system; wherever else a module lies it may be edited."""
    place = tmp_path / folder
    place.mkdir()
    module = ModuleType("tkc_test_outside")
    module.__file__ = str(place / "tkc_test_outside.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    made = type("Made", (), {"__module__": module.__name__, "value": 2.0})
    found = fingerprint.Fingerprint()
    found.read("made", made)
    assert found.careful != (folder != "packages")


def test_the_toolchain_counts(monkeypatch):
    k = _kernel(1)
    s = _arguments(k, "f32[4]")
    first = k._key(s, "sm_80")
    monkeypatch.setattr("tkc.runtime.jit.toolchain", lambda: (("tkc", b"another"),))
    assert k._key(s, "sm_80") != first


@pytest.mark.parametrize(
    "a,b",
    [
        (1, 2),
        (1, 1.0),
        (1, True),
        ("1", 1),
        ((1, 2), (12,)),
        ([1], (1,)),
        ({"a": 1}, {"a": 2}),
        (np.float32(1), np.float64(1)),
        (np.zeros(2), np.zeros(3)),
        (lambda x: x, lambda x: -x),
        (0.1, 0.1 + 2**-56),
        (frozenset({1}), frozenset({2})),
    ],
)
def test_values_that_differ_are_spelled_differently(a, b):
    assert _kernel(a)._key(_arguments(_kernel(a), "f32[4]"), "cpu") != _kernel(b)._key(
        _arguments(_kernel(b), "f32[4]"), "cpu"
    )


def read_by(kernel: JitFunction) -> set[str]:
    """The names that a kernel depends on, without parts of functions, cells and classes; variables
    of the environment, which passes read, are bytes.
    """
    named = {name for _, name, _ in kernel._watched if isinstance(name, str)}
    return named - {*FUNCTION_PARTS, CONTENTS, BASES, fingerprint.SIZE}


def test_a_global_with_the_name_of_a_parameter_is_none_of_the_kernels_business():
    """In a script the arrays passed to a kernel are globals, often named as its parameters."""
    space = {"x": Odd(), "n": np.zeros(1 << 20), "y": Odd(), "tkc": tkc}
    exec(
        "def kernel(x, n):\n    y = x\n    def inner(n): return n.y\n    return [x for x in"
        " (y, n)]",
        space,
    )
    k = JitFunction(space["kernel"])
    assert k._key(_arguments(k, "f32[4]", "i32"), "cpu") and not read_by(k)


def test_names_in_code_without_source_are_found():
    space = {"A": 1, "math": __import__("math")}
    exec("def kernel(x): return [A for i in x], math.pi", space)
    k = JitFunction(space["kernel"])
    first = k._key(s := _arguments(k, "f32[4]"), "cpu")
    space["A"] = 2
    assert JitFunction(space["kernel"])._key(s, "cpu") != first
    assert read_by(k) == {"A", "math", "pi"}


def test_a_warm_start_imports_neither_xdsl_nor_llvmlite(tmp_path):
    program = (
        "import sys\nfrom tests.runtime.kernels import add\nc = add.compile('f32[64]', 'f32[64]',"
        " 'f32[64]', 'i32', target='sm_90a')\nprint(c.cached, len(c.ptx), *{'xdsl', 'llvmlite',"
        " 'torch', 'cuda', 'rich', 'click'} & set(sys.modules))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=os.environ | {"TKC_CACHE_DIR": str(tmp_path / "c")},
            capture_output=True,
            text=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert runs[0][0] == "False" and runs[1] == ["True", runs[0][1]]


def test_a_warm_launch_on_the_cpu_imports_no_compiler(tmp_path):
    program = (
        "import sys\nimport numpy as np\nfrom tests.runtime.kernels import add, grid\nx, out ="
        " np.ones(100, np.float32), np.zeros(100, np.float32)\nadd[grid](x, x, out, 100)\nassert"
        " (out == 2).all()\nprint(*sorted({'xdsl', 'tkc.ir.types', 'tkc.codegen.cpu.lower',"
        " 'torch', 'rich'} & set(sys.modules)))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=os.environ | {"TKC_CACHE_DIR": str(tmp_path / "c")},
            capture_output=True,
            text=True,
        )
        for _ in range(2)
    ]
    assert "xdsl" in runs[0].stdout and not runs[1].stdout.strip(), [r.stderr[-500:] for r in runs]


def test_a_value_without_a_spelling_is_compiled_and_not_cached():
    assert _kernel(Odd())._key(_arguments(_kernel(Odd()), "f32[4]"), "cpu") is None


def _scaled(factor):
    return lambda x: x * factor


def test_closures_of_one_factory_are_different_functions():
    """Also where a value holds several: (f, f, g) is not (f, g, g)."""
    f, g = _scaled(2.0), _scaled(5.0)
    keys = {
        _kernel(value)._key(_arguments(_kernel(value), "f32[4]"), "cpu")
        for value in (f, g, (f, g), (g, f), (f, f, g), (f, g, g))
    }
    assert len(keys) == 6
    again = _kernel((_scaled(2.0), _scaled(5.0)))
    assert again._key(_arguments(again, "f32[4]"), "cpu") in keys


def test_lambdas_of_one_line_launch_their_own_code():
    @tkc.jit
    def apply(x, out, F: tkc.constexpr):
        tkc.store(out, (0,), F(tkc.load(x, (0,), (4,))))

    x = np.arange(4, dtype=np.float32)
    a, b = (lambda v: v + 1), (lambda v: v * 10)
    for f, want in ((a, x + 1), (b, x * 10), (_scaled(3.0), x * 3), (_scaled(7.0), x * 7)):
        out = np.zeros(4, np.float32)
        apply[1](x, out, f)
        assert (out == want).all()
