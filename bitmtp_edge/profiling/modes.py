"""Power modes of a profile: which come when, and the one from before at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ..errors import UserError
from ..power.mode_note import left_behind
from ..power.modes import PowerModes

ALL = "all"


class ModeTour:
    """Goes through power modes; without ``modes`` there is one mode, which has no name."""

    def __init__(
        self,
        modes: PowerModes | None,
        reboot: bool = False,
        notice: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._modes = modes
        self._reboot = reboot
        self._notice = notice

    def names(self, asked: Sequence[str]) -> tuple[str | None, ...]:
        """The modes ``asked`` for, as the board spells them, each once; of none the present one, as
        far as it is known. "all": every mode, but those that take a reboot only where that is
        allowed, and ``notice`` is told which are left out. UserError for another name."""
        if self._modes is None:
            return (None,)
        if not asked:
            return (self._present(self._modes),)
        current = self._modes.current()
        found: list[str] = []
        for name in asked:
            if name != ALL:
                found.append(self._modes.find(name).name)
                continue
            modes = self._modes.table.modes
            barred = [
                mode.name
                for mode in modes
                if not self._reboot and self._modes.needs_reboot(mode, current)
            ]
            found += [mode.name for mode in modes if mode.name not in barred]
            if barred:
                self._notice(
                    f"left out, since they take a reboot, which --reboot allows: "
                    f"{', '.join(barred)}"
                )
        return tuple(dict.fromkeys(found))

    def _present(self, modes: PowerModes) -> str | None:
        try:
            current = modes.current()
            why = "nothing names it"
        except UserError as error:  # nothing is to be set, so nothing is refused
            current, why = None, str(error)
        if current is None:
            self._notice(f"the power mode is unknown, so a change of it would not be seen: {why}")
            return None
        return current.name

    def other_than(self, name: str | None) -> str | None:
        """The power mode now, where it is not ``name``; of None, which nobody knows, None."""
        return None if self._modes is None or name is None else self._modes.other_than(name)

    @contextmanager
    def held(
        self, names: Sequence[str | None], cannot: Callable[[str, UserError], None]
    ) -> Iterator[Iterator[str | None]]:
        """An iterator over ``names``, each of which holds until the next one, in the order of
        :func:`in_order`; behind the block the mode from before is set again. ``cannot`` gets each
        that cannot be set, and why, and the next one comes.

        Raises UserError as :meth:`PowerModes.held` does on the way back, and :class:`Rebooting`
        where the board is about to.
        """
        known = [name for name in names if name is not None]
        if self._modes is None or not known:
            yield iter(names)
            return
        modes, current = self._modes, self._modes.current()
        present = None if current is None else current.name
        if set(known) == {present} and left_behind(modes.root) is None:
            with modes.kept():  # nothing to set, so nobody has to be allowed to
                yield iter(names)
            return
        order = in_order(known, present, lambda name: modes.needs_reboot(modes.find(name), current))
        with ExitStack() as holding:
            while order:
                try:
                    holding.enter_context(modes.held(order[0], reboot=self._reboot))
                    break
                except UserError as error:
                    cannot(order.pop(0), error)
            yield self._each(modes, order, cannot)

    def _each(
        self, modes: PowerModes, order: Sequence[str], cannot: Callable[[str, UserError], None]
    ) -> Iterator[str | None]:
        for name in order:
            try:
                modes.change(name, reboot=self._reboot)
            except UserError as error:
                cannot(name, error)
            else:
                yield name


def in_order(
    names: Sequence[str], current: str | None, takes_reboot: Callable[[str], bool]
) -> list[str]:
    """The present mode first, then those that it leads to without a reboot, and the rest last: a
    reboot ends the process."""
    return sorted(names, key=lambda name: (name != current, takes_reboot(name)))
