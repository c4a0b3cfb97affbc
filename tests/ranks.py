"""Several ranks as threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable


def together(run: Callable[[int, Callable[[], str | None]], None], world: int) -> None:
    """run(rank, lost) on one thread a rank. What a rank raises is raised behind all of them, the
    first one's; `lost` names it meanwhile.
    """
    died: dict[int, BaseException] = {}

    def lost() -> str | None:
        return next((f"rank {r} has died: {e}" for r, e in died.items()), None)

    def rank(r: int) -> None:
        try:
            run(r, lost)
        except BaseException as e:
            died.setdefault(r, e)

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(world)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(300)
    for e in died.values():
        raise e
