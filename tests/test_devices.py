"""Devices as data: every file is whole and says where each number is from, a GPU that no file names
gets the nearest one, and no other file of tkc has a number that was measured.
"""

import ast
import json
import re
import tokenize
from pathlib import Path

import numpy as np
import pytest

from tests.sources import nodes, tree
from tkc import devices
from tkc.devices.files import FOLDER
from tkc.errors import DeviceError
from tkc.ir.target import TARGETS, target

TKC = Path(__file__).resolve().parents[1] / "tkc"
H200 = json.loads((FOLDER / "h200.json").read_text())
EVERY_SM = 132


def observed(**numbers) -> devices.Observed:
    usual = {
        "name": "Unknown",
        "architecture": "sm_90a",
        "multiprocessors": EVERY_SM,
        "clock": 1.98,
        "bandwidth": 4800.0,
        "l2": 50 << 20,
        "shared": 232448,
    }
    return devices.Observed(**usual | numbers)


@pytest.mark.parametrize("name", devices.names())
def test_every_file_is_whole(name):
    device = devices.resolved(name)
    assert device.architecture in TARGETS
    assert device.chip.shared == TARGETS[device.architecture].shared_bytes
    assert device.rates.memory < device.chip.bandwidth and device.rates.cache < device.chip.l2
    assert device.drivers
    said = dict(device.sources)
    for section in ("chip", "rates", "engines", "costs", "assembler", "attention"):
        for field in vars(getattr(device, section)):
            assert len(said[f"{section}.{field}"]) > 10


def test_the_devices_of_issue_24_have_files():
    assert set(devices.names()) >= {
        *("h100_sxm", "h100_pcie", "h200", "h20", "gh200", "a100_40", "a100_80"),
        *("rtx4090", "rtx3090", "l4", "l40s", "a10"),
    }


def changed(section: str, field: str, value) -> dict:
    data = json.loads(json.dumps(H200))
    if value is None:
        del data[section][field]
    else:
        data[section][field] = value
    return data


@pytest.mark.parametrize(
    "data, message",
    [
        ([], "format"),
        (H200 | {"format": "tkc-device-0"}, "format"),
        (H200 | {"speed": 1}, "unknown key 'speed'"),
        (H200 | {"sources": {}}, "chip.multiprocessors"),
        (H200 | {"sources": 1}, "sources"),
        (H200 | {"drivers": "NVIDIA H200"}, "drivers"),
        ({k: v for k, v in H200.items() if k != "costs"}, '"costs"'),
        ({k: v for k, v in H200.items() if k != "chip"}, '"chip"'),
        (H200 | {"like": "h201"}, "there is no device 'h201'"),
        (changed("chip", "clock", None), "chip.clock"),
        (changed("chip", "clock", 1.98), "chip.clock"),
        (changed("chip", "clock", [1.98, "hearsay"]), "chip.clock"),
        (changed("chip", "clock", [-1.98, "vendor"]), "more than 0"),
        (changed("chip", "clock", [float("inf"), "vendor"]), "more than 0"),
        (changed("chip", "clock", ["fast", "vendor"]), "more than 0"),
        (changed("chip", "clock", [True, "vendor"]), "more than 0"),
        (changed("chip", "l2", [1.5, "vendor"]), "whole"),
        (changed("chip", "gpcs", [[66, 65], "vendor"]), "add up to 131"),
        (changed("chip", "gpcs", [[66, 0], "vendor"]), "more than 0"),
        (changed("costs", "joy", [1, "fit"]), "unknown number costs.joy"),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path, data, message):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(data))
    with pytest.raises(DeviceError, match=re.escape(message)) as e:
        devices.read(path)
    assert "bad.json" in str(e.value) or "h201" in str(e.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DeviceError, match="tkc calibrate"):
        devices.read(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("H200")
    with pytest.raises(DeviceError, match="tkc calibrate"):
        devices.read(tmp_path / "text.json")


@pytest.mark.parametrize("text", ["h201", "h200,clock", "h200,clock=0", "h200,power=1"])
def test_a_text_that_names_no_device(text):
    with pytest.raises(DeviceError):
        devices.resolved(text)


def test_a_description_replaces_numbers_in_proportion():
    device = devices.resolved("h200,multiprocessors=78,bandwidth=2400,l2=26214400,clock=0.99")
    usual = devices.resolved("h200")
    assert device.chip.multiprocessors == 78
    assert device.multiprocessors_of_gpcs == (78,)
    for section, field in (("rates", "memory"), ("rates", "clock"), ("rates", "cache")):
        half = getattr(getattr(device, section), field) * 2
        assert half == pytest.approx(getattr(getattr(usual, section), field))


def test_the_nearest_file():
    assert devices.nearest(observed(name="NVIDIA H200")) == "h200"
    assert devices.nearest(observed(name="NVIDIA H100 PCIe", multiprocessors=7)) == "h100_pcie"
    # a driver's bandwidth is not quite that of a datasheet
    assert devices.nearest(observed(bandwidth=4917.0)) == "h200"
    found = devices.nearest(observed(multiprocessors=96, bandwidth=0))
    assert "multiprocessors=96" in found and "bandwidth" not in found
    ada = observed(architecture="sm_89", multiprocessors=60, clock=2.1, bandwidth=320, l2=48 << 20)
    assert devices.nearest(ada).startswith("l4")
    with pytest.raises(DeviceError, match="tkc calibrate"):
        devices.nearest(observed(architecture="sm_75"))


def test_targets_with_a_device():
    pcie = target("sm_90a:h100_pcie")
    assert pcie.name == "sm_90a" and pcie.multiprocessors == 114
    assert target("sm_90a").multiprocessors == EVERY_SM
    assert list(TARGETS) == ["sm_80", "sm_86", "sm_89", "sm_90a"] and len(TARGETS) == 4
    for wrong in ("sm_90a:l4", "sm_90a:", "sm_75", "sm_90a:h200,joy=1", "cpu:h200"):
        assert wrong not in TARGETS
        with pytest.raises(ValueError, match="unknown target"):
            target(wrong)


def test_files_of_the_user_come_first(tmp_path, monkeypatch):
    data = changed("chip", "bandwidth", [4200, "vendor"]) | {"drivers": ["Mine"]}
    (tmp_path / "mine.json").write_text(json.dumps(data))
    monkeypatch.setenv("TKC_DEVICES", str(tmp_path))
    assert devices.nearest(observed(name="Mine")) == "mine"
    assert devices.resolved("mine").chip.bandwidth == 4200
    assert devices.own_files() == [tmp_path / "mine.json"]


def test_what_is_written_can_be_read(tmp_path):
    device = devices.resolved("h200")
    source_of = dict.fromkeys(dict(device.sources), "all")
    text = devices.written(device, {"all": "a test"}, source_of, "h200")
    (tmp_path / "again.json").write_text(text)
    again = devices.read(tmp_path / "again.json")
    assert (again.chip, again.rates, again.costs) == (device.chip, device.rates, device.costs)


# ---- numbers that were measured ------------------------------------------------------------------
# Where plans are made and time is predicted, each number with a fraction is a measurement, unless
# it is a whole number or a half: those say how something is computed. A name that speaks of time,
# of a rate or of a ratio of times has no number of its own.
MODELS = ("passes/planning", "passes/programs", "passes/plan.py", "timing", "kernels/matmul.py")
MODELS += "kernels/blocks.py", "kernels/attention_blocks.py"
OF_TIME = re.compile(
    r"CLOCKS|LATENCY|_NS$|_RATE$|PENALTY|FACTOR|GHZ|PER_CLOCK|BANDWIDTH|(?<!DEBUG_WAIT_)SECONDS"
)
# what is no measurement: a limit that we set ourselves
LIMITS = {
    "CLOCKS_TOLERANCE",  # of an iteration: what counts as the same
    "MEASURING_SECONDS",  # of tuning
    "WORKER_TIMEOUT_SECONDS",
    "MAX_SECONDS",
}
MEASURED = re.compile(
    r"\d ?(?:us|µs|ms|ns|TFLOP/s|GFLOP/s|GB/s|TB/s|GHz)\b|\d ?% (?:faster|slower|of)"
)


def sources(*places: str):
    for place in places:
        path = TKC / place
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def test_models_have_no_numbers_of_their_own():
    found = []
    for path in sources(*MODELS):
        tolerances = {
            id(v)
            for n in nodes(path)
            if isinstance(n, ast.Assign)
            and {t.id for t in n.targets if isinstance(t, ast.Name)} & LIMITS
            for v in ast.walk(n.value)
        }
        for node in nodes(path):
            fraction = isinstance(node, ast.Constant) and isinstance(node.value, float)
            if not fraction or id(node) in tolerances:
                continue
            # of seconds and bytes: powers of ten; of the event queue: rounding
            exact = node.value * 2 == int(node.value * 2) or node.value in (1e-6, 1e-9)
            if not exact:
                found.append(f"{path.relative_to(TKC)}:{node.lineno} {node.value}")
    assert not found, found


def test_no_name_of_time_has_a_number():
    found = []
    for path in sources("passes", "timing", "kernels", "runtime", "ir", "codegen"):
        for node in tree(path).body:
            if isinstance(node, ast.Assign):
                names = [n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)]
                if any(OF_TIME.search(n) and n not in LIMITS for n in names) and any(
                    isinstance(v, ast.Constant) and isinstance(v.value, (int, float))
                    for v in ast.walk(node.value)
                ):
                    found.append(f"{path.relative_to(TKC)}:{node.lineno} {names[0]}")
    assert not found, found


def test_no_text_says_what_was_measured():
    """Comments and docstrings."""
    found = []
    for path in sources("passes", "timing", "kernels", "runtime", "ir", "codegen", "language"):
        if not MEASURED.search(path.read_text()):
            continue  # nor does a part of it
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                is_docstring = token.type == tokenize.STRING and token.string.startswith('"""')
                if (token.type == tokenize.COMMENT or is_docstring) and MEASURED.search(
                    token.string
                ):
                    said = MEASURED.search(token.string)
                    found.append(f"{path.relative_to(TKC)}:{token.start[0]} {said[0]}")
    assert not found, found


def test_a_calibrated_file_can_be_read(tmp_path):
    """What was measured is in it as measured, the rest as of the nearest device."""
    from tkc.tools.calibrate import Measurements, described

    gpu = observed(name="NVIDIA H100 NVL", multiprocessors=132, bandwidth=3900.0)
    found = Measurements(clock=1.5, memory=3300.0, l2=9e12, power=400.0)
    name, text = described(gpu, 94 << 30, found, "2026-11-23")
    assert name == "nvidia_h100_nvl"
    (tmp_path / f"{name}.json").write_text(text)
    device = devices.read(tmp_path / f"{name}.json")
    assert device.rates.memory == 3300 and device.rates.l2 == 6000 and device.chip.power == 400
    said = dict(device.sources)
    assert said["rates.memory"] == "tkc calibrate, 2026-11-23"
    assert said["costs.restart_clocks"].startswith("as of ")
    # without nvidia-smi
    _, text = described(gpu, 94 << 30, Measurements(None, 3300.0, None, None), "2026-11-23")
    (tmp_path / "again.json").write_text(text)
    assert "as of" in dict(devices.read(tmp_path / "again.json").sources)["rates.clock"]


def test_the_load_under_which_the_clock_is_read_needs_no_shape():
    """Arrays of a GPU's memory have nothing but the interface of arrays."""
    from tkc.tools.calibrate import products

    class Bare:
        def __init__(self, array):
            self.array, self.__array_interface__ = array, array.__array_interface__

    side = 192
    a, b = (np.random.default_rng(i).normal(size=(side, side)).astype(np.float16) for i in (0, 1))
    c = np.zeros((side, side), np.float16)
    products(Bare(a), Bare(b), Bare(c), side)()
    assert np.abs(c - a.astype(np.float32) @ b.astype(np.float32)).max() < 0.05


def test_calibrating_compiles():
    from tkc.kernels.reads import multiply, read

    f16 = ["f16[4096, 4096]"] * 3
    assert "wgmma" in multiply.compile(*f16, BM=128, BN=128, BK=64, target="sm_90a").ptx
    assert "mma.sync" in multiply.compile(*f16, BM=128, BN=128, BK=64, target="sm_80").ptx

    for times in (1, 256):
        compiled = read.compile(
            "f32[1048576]", "f32[128]", COUNT=128, TIMES=times, N=8192, target="sm_90a"
        )
        assert "ld.global" in compiled.ptx or "cp.async" in compiled.ptx
