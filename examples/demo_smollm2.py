"""Plain decoding beside nested decoding, on three prompts.

Usage: python examples/demo_smollm2.py BUNDLE

In the nested reply, what was drafted on the base plane and accepted is green; the tokens that the
verify step itself chose are plain. Every reply is decoded RUNS times, of which the first is shown:
one run's rate says little on a machine that does other things too.
"""

from __future__ import annotations

import sys
from collections import Counter
from statistics import median

from screen import BOLD, DIM, GREEN, Screen, run

from bitmtp_edge.decode.generate import GenerationResult
from bitmtp_edge.decode.policies import Policy
from bitmtp_edge.session import Session

# The first three of prompts.txt.
PROMPTS = (
    "Why is the sky blue? Explain it to a child.",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "List five ways to save energy at home.",
)
HEADING = ("prompt", "tokens", "ar tok/s", "nested tok/s", "speed-up", "tokens/step", "same text")
TOKENS = 64
RUNS = 3
FIRST_STEPS = 20


def reply(session: Session, screen: Screen, policy: Policy, ids: list[int]) -> GenerationResult:
    """Decodes and shows one reply."""
    decoder = session.decoder(policy)
    shown = len(ids)

    def show(text: str) -> None:
        nonlocal shown
        tokens = decoder.prefix.tokens
        own = session.tokenizer.decode(tokens[-1:])  # the verify step's own token ends a block
        cut = len(text) - len(own) if text.endswith(own) else len(text)
        screen.stream(text[:cut], GREEN if len(tokens) - shown > 1 else "")
        screen.stream(text[cut:])
        shown = len(tokens)

    screen.column(policy.name)
    result = session.reply(decoder, ids, TOKENS, on_text=show)
    screen.end()
    return whole(result)


def whole(result: GenerationResult) -> GenerationResult:
    """``result``; an interrupt that ended it ends the demo."""
    if result.finish_reason == "interrupted":
        raise KeyboardInterrupt
    return result


def decode_seconds(
    session: Session, shown: dict[Policy, GenerationResult], ids: list[int]
) -> list[float]:
    """For each policy the median of its shown run and of more, in alternating order."""
    seconds = {policy: [result.decode_s] for policy, result in shown.items()}
    order = list(shown)
    for _ in range(1, RUNS):
        order.reverse()  # so that a machine that slows down steadily favours none
        for policy in order:
            result = whole(session.reply(session.decoder(policy), ids, TOKENS))
            seconds[policy].append(result.decode_s)
    return [median(runs) for runs in seconds.values()]


def accepted_counts(lengths: list[int], drafts: int) -> str:
    """How many steps accepted 0, 1 .. ``drafts``, and what the first steps did."""
    counts = Counter(lengths)
    histogram = " ".join(f"{n}:{counts[n]}" for n in range(drafts + 1))
    first = " ".join(map(str, lengths[:FIRST_STEPS]))
    which = "each" if len(lengths) <= FIRST_STEPS else f"first {FIRST_STEPS}"
    return f"accepted of {drafts} drafts, as accepted:steps {histogram}; {which}: {first}"


def demo(path: str) -> int:
    """Shows it; 1 if nested decoding returned other tokens than plain decoding."""
    screen = Screen()
    with Session.open(path) as session:
        plain, nested = session.policy("ar"), session.policy("nested")
        for policy in (plain, nested):  # read the weights from disk before the first rate counts
            session.reply(session.decoder(policy), session.prompt_ids("Hi"), nested.max_drafts + 2)
        where = f"engine {session.engine.name}, {session.engine.threads} threads"
        screen.line(f"{session.bundle.model.name}, nested 4/8-bit weights, {where}", BOLD)
        if screen.coloured:
            screen.line("green: drafted on the 4-bit plane and accepted by the 8-bit model", DIM)
        rows = [HEADING]
        accepted = drafted = 0
        for number, prompt in enumerate(PROMPTS, 1):
            ids = session.prompt_ids(prompt)
            screen.line()
            screen.line(f"{number}. {prompt}", BOLD)
            ar = reply(session, screen, plain, ids)
            ours = reply(session, screen, nested, ids)
            screen.note(accepted_counts(ours.accepted_lengths, nested.max_drafts))
            ar_s, ours_s = decode_seconds(session, {plain: ar, nested: ours}, ids)
            ar_rate, our_rate = ar.generated_tokens / ar_s, ours.generated_tokens / ours_s
            screen.note(
                f"ar {ar_rate:.1f} tok/s, nested {our_rate:.1f} tok/s (medians of {RUNS} runs), "
                f"{ours.tokens_per_iteration:.2f} tokens a verify step"
            )
            accepted += sum(ours.accepted_lengths)
            drafted += ours.drafted_tokens
            same = ar.token_ids == ours.token_ids
            rows.append(
                (
                    f"{number}.",
                    str(ours.generated_tokens),
                    f"{ar_rate:.1f}",
                    f"{our_rate:.1f}",
                    f"{ar_s / ours_s:.2f}x",
                    f"{ours.tokens_per_iteration:.2f}",
                    "yes" if same else "NO",
                )
            )
    screen.line()
    screen.table(rows)
    screen.line()
    if any(row[-1] == "NO" for row in rows):
        screen.line("Nested decoding returned other tokens than plain decoding: that is a bug.")
        return 1
    share = accepted / drafted if drafted else 0.0
    for line in (
        "Every reply has the same tokens: the verify step decides all of them,",
        "and the drafts only tell it how many to decide at once.",
        "",
        "A speed-up near 1 is what a CPU and a model this small give: a draft costs more than",
        f"half a plain step, verifying {nested.max_drafts} of them a little more than one, "
        f"and {share:.0%} of the",
        "drafts were accepted. Larger models on boards that wait for memory should gain; none was",
        "measured yet.",
    ):
        screen.line(line)
    return 0


def main() -> int:
    return run(demo)


if __name__ == "__main__":
    sys.exit(main())
