"""What the nine files of the corpus are made of, as ``recipe.toml`` reads them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """What one source gives to a file.

    samples: how many distinct ones are taken, of a source that never ends; None takes all it has.
    every: of those taken, the first of every so many is written. times: how often the whole is
    written, one run behind the other.
    """

    source: str
    samples: int | None = None
    every: int = 1
    times: int = 1


# Parts follow one another in a file, without what an earlier one asked; the trainer shuffles. The
# amounts fit the shares of recipe.toml. Of chat, some 35 of 100 samples are dialogue, 35 replies of
# the teacher and 30 meanings of words: `times` is what that takes with 2,526 replies.
MIXTURE: dict[str, tuple[Part, ...]] = {
    "gsm": (Part("gsm", 650_000),),
    "drills": (Part("drills", 150_000),),
    "arithmetic": (Part("arithmetic", 124_051),),
    "legs": (Part("legs", 51_196),),
    "sorting": (Part("sorting", 47_055),),
    "reversal": (Part("reversal", 66_172),),
    "chat": (
        Part("talk", times=2),
        Part("facts"),
        Part("conversations", times=2),
        Part("replies", times=14),
        Part("meanings"),
    ),
    "docs": (Part("docs"),),
    "code": (Part("code", every=2), Part("codeio")),
}
