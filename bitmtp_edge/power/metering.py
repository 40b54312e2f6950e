"""Whether a session's energy is measured: its meter, or why it has none."""

from __future__ import annotations

from ..errors import UserError
from .meter import Meter, Window
from .registry import AUTO, METER_ORDER_CPU, METER_ORDER_GPU, open_source
from .source import Where

OFF = "off"


class Metering:
    """A meter that samples, or none and the ``reason``. Use as a context manager, or call
    :meth:`close`."""

    def __init__(self, meter: Meter | None, reason: str | None = None) -> None:
        self.meter = meter
        self.reason = reason
        if meter is not None:
            meter.__enter__()

    @classmethod
    def open(cls, source: str = AUTO, where: Where | None = None, on_gpu: bool = False) -> Metering:
        """By ``source``; of ``auto``, by the first that works, and none where none does; of
        ``off``, none. on_gpu: what is measured runs on a GPU. Raises UserError where a source that
        was named does not work.
        """
        if source == OFF:
            return cls(None, "the meter is off (--energy off)")
        order = METER_ORDER_GPU if on_gpu else METER_ORDER_CPU
        try:
            return cls(Meter(open_source(source, where, order=order)))
        except UserError as error:
            if source != AUTO:
                raise
            return cls(None, str(error))

    def begin(self) -> Window | None:
        """A window from now on; None without a meter."""
        return None if self.meter is None else self.meter.begin()

    def close(self) -> None:
        """Ends sampling and closes the source; more than once is no fault."""
        if self.meter is not None:
            meter, self.meter = self.meter, None
            self.reason = "the meter was closed"
            meter.__exit__(None, None, None)

    def __enter__(self) -> Metering:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
