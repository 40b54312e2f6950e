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


# Parts follow one another in a file; the trainer shuffles. The amounts fit the shares of
# recipe.toml: drills and tasks come by a few times each in the shipped run. Words and library code
# are thinned and small talk is repeated, so that the large part of a file does not drown the small.
MIXTURE: dict[str, tuple[Part, ...]] = {
    "gsm": (Part("gsm", 650_000),),
    "drills": (Part("drills", 73_509),),
    "arithmetic": (Part("arithmetic", 124_051),),
    "legs": (Part("legs", 51_196),),
    "sorting": (Part("sorting", 47_055),),
    "reversal": (Part("reversal", 66_172),),
    "chat": (Part("wordnet", every=3), Part("smalltalk", times=20)),
    "docs": (Part("docs"),),
    "code": (Part("code", every=5), Part("codeio", every=4)),
}
