"""Signs of life while environments in Python are stepped, however long one step takes."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from qcrl.sampling.host import Watch

SECONDS = 1.0
"""Between two signs."""


def watch(tell: Callable[[float], None], breakable: Callable[[], AbstractContextManager[object]]) -> Watch:
    """Tells how far an iteration is after every step of all environments, and every second in between."""
    done = 0.0

    def tick(share: float) -> None:
        nonlocal done
        done = share % 1  # a whole iteration is the beginning of the next
        tell(share)

    def beat(over: threading.Event) -> None:
        while not over.wait(SECONDS):
            tell(done)

    @contextmanager
    def beating() -> Iterator[None]:
        over = threading.Event()
        threading.Thread(target=beat, args=(over,), daemon=True).start()
        try:
            with breakable():
                yield
        finally:
            over.set()

    return Watch(tick, beating)
