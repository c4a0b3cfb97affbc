"""What a Python object holds of its own: the attributes in its dict and in its slots, the bits of a
float. A class's own way to find attributes is not asked.
"""

from __future__ import annotations

import gc
import struct
import types
from contextlib import suppress
from typing import Any


def own_dict(value: object) -> dict[str, Any]:
    """The dict of an object's attributes, for reading; an empty one where it has none. Of a class,
    what stands behind the proxy that Python gives of it.
    """
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    if isinstance(held, types.MappingProxyType) and isinstance(value, type):
        return next((d for d in gc.get_referents(held) if type(d) is dict), {})
    return held


def slots_of(cls: type) -> list[types.MemberDescriptorType]:
    """The slots that a class adds."""
    own = vars(cls)
    if "__slots__" not in own:
        return []
    return [member for member in own.values() if isinstance(member, types.MemberDescriptorType)]


def slots_by_name(value: object) -> dict[str, types.MemberDescriptorType]:
    """The slots of an object, under the names that Python gives them (of `__x` another one); one
    that a class behind hides, as "Base.x".
    """
    found: dict[str, types.MemberDescriptorType] = {}
    for cls in type(value).__mro__:
        for slot in slots_of(cls):
            found[slot.__name__ if slot.__name__ not in found else slot.__qualname__] = slot
    return found


def own_attributes(value: object) -> dict[str, Any]:
    """The attributes of an object, in its slots too; a slot that holds nothing is left out."""
    found = dict(own_dict(value))
    for name, slot in slots_by_name(value).items():
        with suppress(AttributeError):
            found[name] = slot.__get__(value)
    return found


def text_of(number: float) -> str:
    """A float with all its bits: of zeros the sign, of NaNs the sign and what else tells them
    apart.
    """
    return number.hex() if number == number else struct.pack(">d", number).hex()
