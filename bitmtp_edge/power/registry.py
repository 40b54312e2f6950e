"""The power sources there are, and the first of them that works."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ..errors import UserError
from .ina3221 import Ina3221
from .jtop import Jtop
from .nvml import Nvml
from .rapl import Rapl
from .source import Source, SourceError, Where
from .tegrastats import Tegrastats

AUTO = "auto"
NAMED_WITHIN_S = 5.0  # who names a source waits for it; `auto` goes on to the next


@dataclass(frozen=True)
class Kind:
    """How a source is opened, and the seconds that it has to open and give a first reading."""

    open: Callable[[Where], Source]
    within_s: float = 1.0


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        # Its service sends once a second: connecting waits for one time, its first answer for
        # another.
        "jtop": Kind(Jtop, within_s=3.0),
        "ina3221": Kind(Ina3221),
        "tegrastats": Kind(Tegrastats),
        "nvml": Kind(Nvml, within_s=5.0),  # without persistence mode the driver has to wake GPUs
        "rapl": Kind(Rapl),
    }
)

# A single reading comes from the first of these that works.
ORDER = tuple(KINDS)

# A meter takes the board's own sensor before what passes its values on once a second. Then what the
# work runs on: a GPU's counter says nothing of work on the processor.
_BOARD = ("ina3221", "jtop", "tegrastats")
METER_ORDER_GPU = (*_BOARD, "nvml")
METER_ORDER_CPU = (*_BOARD, "rapl")


def open_source(
    name: str = AUTO,
    where: Where | None = None,
    notice: Callable[[str], None] = lambda line: None,
    order: Sequence[str] = ORDER,
) -> Source:
    """Source ``name``, or of ``auto`` the first of ``order`` that gives a reading.

    ``notice`` is told in one line which were skipped for that, and why. Raises UserError where the
    one that was named, or none, works.
    """
    where = where or Where()
    if name != AUTO:
        if name not in KINDS:
            raise UserError(f"there is no power source {name!r}: take {', '.join(KINDS)} or {AUTO}")
        try:
            return _opened(KINDS[name], where, NAMED_WITHIN_S)
        except SourceError as error:
            raise UserError(f"power source {name} does not work here: {error}") from None
    skipped = []
    for each in order:
        try:
            source = _opened(KINDS[each], where, KINDS[each].within_s)
        except SourceError as error:
            skipped.append(f"{each}: {error}")
            continue
        if skipped:
            notice(f"power is read from {each}; {'; '.join(skipped)}")
        return source
    raise UserError(f"no power source works here: {'; '.join(skipped)}")


def _opened(kind: Kind, where: Where, within_s: float) -> Source:
    """The source after its first reading. A driver or a service that hangs keeps its thread, not
    ours; what it opens late is closed again."""
    where = replace(where, first_within_s=within_s - 0.1)
    done = threading.Event()
    lock = threading.Lock()
    given_up = False
    found: list[Source] = []
    failed: list[Exception] = []

    def work() -> None:
        try:
            source = kind.open(where)
            try:
                source.read()
            except BaseException:
                source.close()
                raise
            with lock:
                if not given_up:
                    found.append(source)
                    return
            source.close()
        except Exception as error:  # told by the thread that waits
            failed.append(error)
        finally:
            done.set()

    threading.Thread(target=work, name="power source", daemon=True).start()
    done.wait(within_s)
    with lock:
        given_up = not found and not failed
    if found:
        return found[0]
    if failed:
        raise failed[0]
    raise SourceError(f"no answer within {within_s:g} s")
