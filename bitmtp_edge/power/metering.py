"""Whether a session's energy is measured: its meter, or why it has none."""

from __future__ import annotations

from ..errors import UserError
from .meter import Meter, Window
from .registry import AUTO, METER_ORDER_CPU, METER_ORDER_GPU, open_source
from .source import Where

OFF = "off"

# An edge of a window is a sample's time wrong at worst: of stretches like these, a few percent.
LEAST_S = 2.0
LEAST_RATE_S = 0.5
LEAST_NEWS = 8  # of the sensor


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

    @property
    def source(self) -> str | None:
        """The name of the power source; None without a meter."""
        return None if self.meter is None else self.meter.source.name

    @property
    def least_s(self) -> float:
        """How long a stretch should last for its figures to be good; without a meter, for its
        rate."""
        if self.meter is None:
            return LEAST_RATE_S
        source = self.meter.source
        return max(LEAST_S, LEAST_NEWS * max(source.poll_s, source.update_s))

    def measure_idle(self, seconds: float) -> float | None:
        """Mean watts of so many seconds in which nothing runs; None without a meter, or a
        figure."""
        return None if self.meter is None else self.meter.measure_idle(seconds).mean_w

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
