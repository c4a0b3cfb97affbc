"""Files of devices: read and checked, found by a driver's name or the nearest numbers, written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from math import isfinite, log
from pathlib import Path
from typing import Any

from tkc.devices.device import (
    Assembler,
    Attention,
    Chip,
    Costs,
    Device,
    Engines,
    Moving,
    Rates,
)
from tkc.errors import DeviceError

FORMAT = "tkc-device-1"
FOLDER = Path(__file__).parent
SECTIONS: dict[str, type] = {
    "chip": Chip,
    "rates": Rates,
    "engines": Engines,
    "costs": Costs,
    "assembler": Assembler,
    "attention": Attention,
    "moving": Moving,
}
KEYS = {"format", "title", "drivers", "architecture", "like", "sources", *SECTIONS}
# what `like` may leave to another file
INHERITED = {"engines", "costs", "assembler", "attention", "moving"}


@dataclass(frozen=True)
class Observed:
    """What a driver says of a GPU. clock: GHz; bandwidth: GB/s; l2, shared: bytes."""

    name: str
    architecture: str
    multiprocessors: int
    clock: float
    bandwidth: float
    l2: int
    shared: int


# numbers of a chip that a driver knows and that a description may replace
REPLACED = ("multiprocessors", "clock", "bandwidth", "l2")
ALIKE = 0.05  # numbers that differ by less are one: a driver's are not those of a datasheet


def _folders() -> tuple[Path, ...]:
    """Where files are looked for, the user's first."""
    given = os.environ.get("TKC_DEVICES")
    return (Path(given), FOLDER) if given else (FOLDER,)


def own_files() -> list[Path]:
    """The user's own files."""
    *given, _ = _folders()
    return sorted(p for folder in given for p in folder.glob("*.json"))


def names() -> tuple[str, ...]:
    """Of all devices that have a file."""
    return tuple(sorted({p.stem for folder in _folders() for p in folder.glob("*.json")}))


def read(path: str | Path) -> Device:
    """The device that a file describes. Raises DeviceError where the file is none, lacks a number
    or has one that cannot be.
    """
    path = Path(path)
    data = _checked(path)
    other = _named(data["like"]) if "like" in data else None
    said: dict[str, str] = {}
    found: dict[str, Any] = {}
    for name, section in SECTIONS.items():
        if name in INHERITED and name not in data and other is not None:
            found[name] = getattr(other, name)
            said |= {
                where: f"as of {other.title}: {source}"
                for where, source in other.sources
                if where.startswith(f"{name}.")
            }
        else:
            found[name] = _section(path, name, data.get(name), section, data["sources"], said)
    chip = found["chip"]
    if chip.gpcs and sum(chip.gpcs) != chip.multiprocessors:
        raise DeviceError(
            f"{path}: chip.gpcs add up to {sum(chip.gpcs)}, chip.multiprocessors is"
            f" {chip.multiprocessors}; make them agree"
        )
    return Device(
        path.stem,
        data["title"],
        tuple(data["drivers"]),
        data["architecture"],
        **found,
        sources=tuple(said.items()),
    )


def _checked(path: Path) -> dict[str, Any]:
    """A file's keys, all known, with texts where texts must be."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise DeviceError(
            f"{path} describes no device: {e}; write one with tkc calibrate"
        ) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise DeviceError(f"{path} is not of the format {FORMAT}; write it with tkc calibrate")
    if unknown := sorted(set(data) - KEYS):
        raise DeviceError(
            f"{path}: unknown key {unknown[0]!r}; there are {', '.join(sorted(KEYS))}"
        )
    sources = data.get("sources")
    if not isinstance(sources, dict) or not all(isinstance(s, str) for s in sources.values()):
        raise DeviceError(f'{path}: expected "sources", texts by name; every number names one')
    for key, kind in (("title", str), ("architecture", str), ("drivers", list)):
        if not isinstance(data.get(key), kind):
            raise DeviceError(f'{path}: expected "{key}", a {kind.__name__}; add it')
    return data


def _section(
    path: Path,
    name: str,
    given: Any,
    kind: type,
    sources: Mapping[str, str],
    said: dict[str, str],
) -> Any:
    """A section's numbers; where each is from goes to `said`."""
    if not isinstance(given, dict):
        raise DeviceError(f'{path}: expected a section "{name}"; add it, or "like" another device')
    known = {f.name: f.type for f in fields(kind)}
    if unknown := sorted(set(given) - set(known)):
        raise DeviceError(
            f"{path}: unknown number {name}.{unknown[0]}; there are {', '.join(known)}"
        )
    numbers: dict[str, Any] = {}
    for field, kind_of_number in known.items():
        where = f"{name}.{field}"
        pair = given.get(field)
        if not isinstance(pair, list) or len(pair) != 2 or pair[1] not in sources:
            raise DeviceError(
                f"{path}: expected {where} as [number, source], the source one of"
                f" {', '.join(sources)}; got {pair!r}"
            )
        numbers[field] = _number(path, where, pair[0], str(kind_of_number))
        said[where] = sources[pair[1]]
    return kind(**numbers)


def _number(path: Path, where: str, value: Any, kind: str) -> Any:
    """A number as its field has it, positive and finite."""

    def good(x: Any) -> bool:
        whole = isinstance(x, int) and not isinstance(x, bool)
        return (whole or isinstance(x, float) and "int" not in kind) and isfinite(x) and x > 0

    if kind.startswith("tuple"):
        if isinstance(value, list) and all(map(good, value)):
            return tuple(value)
    elif good(value):
        return value if kind == "int" else float(value) if isinstance(value, float) else value
    raise DeviceError(
        f"{path}: {where} must be {'whole and ' if 'int' in kind else ''}more than 0, got {value!r}"
    )


def _path(name: str) -> Path | None:
    paths = (folder / f"{name}.json" for folder in _folders())
    return next((p for p in paths if p.is_file()), None)


def _named(name: str) -> Device:
    path = _path(name)
    if path is None:
        raise DeviceError(f"there is no device {name!r}; there are {', '.join(names())}")
    return _read(path, path.stat().st_mtime_ns)


@cache
def _read(path: Path, _: int) -> Device:
    """A file as it was at a time."""
    return read(path)


def resolved(text: str) -> Device:
    """The device of a text such as "h200" or "h200,multiprocessors=114,bandwidth=2000": a file's
    name, and numbers of `chip` that are others. What the device reaches changes in proportion.
    Raises DeviceError.
    """
    name, *changes = text.split(",")
    device = _named(name)
    for change in changes:
        field, _, number = change.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if field not in REPLACED or not value > 0 or not isfinite(value):
            raise DeviceError(
                f"{change!r} of the device {text!r} is not one of {', '.join(REPLACED)} = a number"
            )
        device = _with(device, field, value)
    return device


def _with(device: Device, field: str, value: float) -> Device:
    """A device of which one number of its chip is another."""
    chip, rates = device.chip, device.rates
    share = value / getattr(chip, field)
    if field == "multiprocessors":
        chip = replace(chip, multiprocessors=int(value), gpcs=())
    elif field == "clock":
        chip, rates = replace(chip, clock=value), replace(rates, clock=rates.clock * share)
    elif field == "bandwidth":
        chip, rates = replace(chip, bandwidth=value), replace(rates, memory=rates.memory * share)
    else:
        chip = replace(chip, l2=int(value))
        rates = replace(rates, cache=int(rates.cache * share))
    return replace(device, chip=chip, rates=rates)


def nearest(observed: Observed) -> str:
    """The text of `resolved` for a GPU at hand: the file that names it, else the nearest one of its
    architecture with the numbers that the driver knows. Raises DeviceError where no file has that
    architecture.
    """
    devices = [_named(name) for name in names()]
    for device in devices:
        if observed.name in device.drivers and device.architecture == observed.architecture:
            return device.name
    alike = [d for d in devices if d.architecture == observed.architecture]
    if not alike:
        raise DeviceError(
            f"no file describes a device of {observed.architecture}; write one with tkc calibrate"
        )

    def distance(device: Device) -> float:
        return sum(
            abs(log(getattr(observed, field) / getattr(device.chip, field)))
            for field in REPLACED
            if getattr(observed, field) > 0
        )

    best = min(alike, key=distance)
    changes = [
        f"{field}={getattr(observed, field):g}"
        for field in REPLACED
        if getattr(observed, field) > 0
        and abs(log(getattr(observed, field) / getattr(best.chip, field))) > ALIKE
    ]
    return ",".join([best.name, *changes])


def written(
    device: Device, sources: Mapping[str, str], source_of: Mapping[str, str], like: str
) -> str:
    """The text of a file: chip and rates of a device, the rest as another one's. sources: what each
    source is; source_of: the source of each number, by "section.field".
    """
    sections = {}
    for name in ("chip", "rates"):
        section = getattr(device, name)
        sections[name] = {
            f.name: [getattr(section, f.name), source_of[f"{name}.{f.name}"]]
            for f in fields(section)
        }
    data = {
        "format": FORMAT,
        "title": device.title,
        "drivers": list(device.drivers),
        "architecture": device.architecture,
        "like": like,
        "sources": dict(sources),
        **sections,
    }
    return json.dumps(data, indent=2) + "\n"
