"""Decoding token by token beside BitMTP's hybrid policy, on three prompts.

Usage: python examples/demo.py BUNDLE

The tokens that one iteration commits have one colour, the next ones the other. Hybrid commits what
its draft is sure of as it stands; underlined tokens are those of a verify step.

Each policy has a session, and so an engine, of its own. First both are timed, one after the other
and without a word: a terminal that draws takes time from the machine. Then they decode again to be
seen, an iteration of one or of the other, at the pace that each had alone. Both are slowed down by
the same factor where the eye could not follow.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter, sleep

from screen import BOLD, CYAN, DIM, GREEN, UNDERLINED, Screen, run, wrap

from bitmtp_edge.decode.generate import GenerationResult
from bitmtp_edge.decode.policies import Policy
from bitmtp_edge.decode.stopping import StopScanner
from bitmtp_edge.scoring import is_right
from bitmtp_edge.session import Session

# Held-out prompts of training/eval, of kinds that the model was trained on, and their answers.
PROMPTS = (
    (
        "If Harry and Steve have 310 meters of fence between them, and they agree to split it with "
        "Steve getting 120 meters more than Harry, how much is left over for Harry? Give the "
        "result as your final answer. Do not include units.",
        "95",
    ),
    (
        "Michael has 75 square meters of a banana field. There are 65 bananas per square meter. "
        "Michael can harvest his bananas every 1 months. How many bananas can Michael harvest "
        "within a year? Give the result as your final answer. Do not include units.",
        "58500",
    ),
    ("Calculate 64 + 49.", "113"),
)
POLICIES = ("ar", "hybrid")
HEADING = ("", "tokens", "iterations", "tokens/iteration", "tokens/s", "verified", "right")
TOKENS = 256
RUNS = 3
MOST_SHOWN = 30.0  # iterations a second
BUSY = 1.5  # times the fastest run, that the median takes
STYLES = {False: (GREEN, CYAN), True: (UNDERLINED + GREEN, UNDERLINED + CYAN)}
PLAIN = ("", DIM)


@dataclass
class Reply:
    """A policy's reply to one prompt, and its runs' seconds of decoding: the median, the least."""

    session: Session
    policy: Policy
    ids: list[int]
    result: GenerationResult
    seconds: float
    fastest: float

    def __str__(self) -> str:
        tokens, iterations = self.result.generated_tokens, self.result.iterations
        rate = tokens / self.seconds
        return f"{tokens} tokens in {iterations} iterations, {rate:.0f} tokens/s"

    def stream(self) -> Iterator[tuple[str, str]]:
        """Decodes it again: the text of each iteration, and its style."""
        scanner = StopScanner(self.session.tokenizer, self.session.stop_rules(), TOKENS)
        decoder = self.session.decoder(self.policy)
        decoder.prefill(self.ids)
        for number, iteration in enumerate(decoder.iterations(len(self.ids) + TOKENS)):
            found = scanner.push(iteration.tokens)
            styles = PLAIN if self.policy.name == "ar" else STYLES[iteration.verified]
            yield found.text, styles[number % 2]
            if found.finished:
                return


def timed(pairs: list[tuple[Session, Policy]], prompt: str) -> list[Reply]:
    """What each policy replies on its session, decoded RUNS times."""
    ids = pairs[0][0].prompt_ids(prompt)
    runs: list[list[GenerationResult]] = [[] for _ in pairs]
    order = list(range(len(pairs)))
    for _ in range(RUNS):
        for which in order:
            session, policy = pairs[which]
            runs[which].append(session.reply(session.decoder(policy), ids, TOKENS))
            if runs[which][-1].finish_reason == "interrupted":
                raise KeyboardInterrupt
        order.reverse()  # so that a machine that slows down steadily favours none
    replies = []
    for (session, policy), results in zip(pairs, runs, strict=True):
        times = [result.decode_s for result in results]
        replies.append(Reply(session, policy, ids, results[0], median(times), min(times)))
    return replies


def show_beside(screen: Screen, replies: list[Reply]) -> None:
    """Both replies as they grow."""
    columns = [[(f"{each.policy.name}\n", BOLD), (f"{each}\n\n", DIM)] for each in replies]
    texts = [wrap(column, screen.half) for column in columns]
    streams = [each.stream() for each in replies]
    pace = [each.seconds / each.result.iterations for each in replies]
    slower = max(1.0, 1 / (MOST_SHOWN * min(pace)))
    due = list(pace)  # when each's next iteration is done, in seconds of its own
    began = perf_counter()
    while min(due) < math.inf:
        which = due.index(min(due))
        sleep(max(0.0, began + due[which] * slower - perf_counter()))
        if block := next(streams[which], None):
            columns[which].append(block)
            texts[which] = wrap(columns[which], screen.half)
            due[which] += pace[which]
        else:
            due[which] = math.inf
        screen.redraw(texts[0], texts[1], last=min(due) == math.inf)
    if slower > 1:
        screen.note(f"shown {slower:.0f} times slower than measured")


def show_in_turn(screen: Screen, replies: list[Reply]) -> None:
    """One reply below the other."""
    for reply in replies:
        screen.column(reply.policy.name)
        for block in reply.stream():
            screen.stream(*block)
        screen.end()
        screen.note(str(reply))


def block_sizes(result: GenerationResult) -> str:
    blocks = zip(result.accepted_lengths, result.verified, strict=True)
    return " ".join(f"{count + 1}v" if verified else f"{count}" for count, verified in blocks)


def total(replies: list[Reply]) -> tuple[int, int, float]:
    """Tokens, iterations and seconds."""
    results = [reply.result for reply in replies]
    tokens = sum(result.generated_tokens for result in results)
    iterations = sum(result.iterations for result in results)
    return tokens, iterations, sum(reply.seconds for reply in replies)


def row(replies: list[Reply]) -> tuple[str, ...]:
    """What the table says of a policy."""
    tokens, iterations, seconds = total(replies)
    verified = sum(sum(reply.result.verified) for reply in replies)
    answers = zip(replies, PROMPTS, strict=True)
    right = sum(is_right(reply.result.text, answer) for reply, (_, answer) in answers)
    return (
        replies[0].policy.name,
        str(tokens),
        str(iterations),
        f"{tokens / iterations:.2f}",
        f"{tokens / seconds:.1f}",
        f"{verified / iterations:.0%}" if replies[0].policy.max_drafts else "-",
        f"{right} of {len(replies)}",
    )


def conclusion(ar: list[Reply], hybrid: list[Reply]) -> str:
    """What hybrid saved in iterations, and what that was worth here."""
    (ar_tokens, ar_count, ar_s), (tokens, count, seconds) = total(ar), total(hybrid)
    more = tokens / count / (ar_tokens / ar_count)
    faster = tokens / seconds / (ar_tokens / ar_s)
    pairs = zip(ar, hybrid, strict=True)
    same = sum(left.result.token_ids == right.result.token_ids for left, right in pairs)
    return (
        f"An iteration of ar took {1000 * ar_s / ar_count:.1f} ms, one of hybrid "
        f"{1000 * seconds / count:.1f} ms: on a small CPU a wide step is compute-bound, and costs "
        f"by the row. So {more:.2f} times the tokens an iteration were {faster:.2f} times the "
        f"tokens a second here. Hybrid's tokens were those of ar on {same} of {len(ar)} prompts; "
        "policy speculative's always are. These are problems of kinds that the model was trained "
        "on; of other text an iteration commits fewer tokens, as bitmtp-edge eval shows."
        f"{busy(ar)}"
    )


def busy(replies: list[Reply]) -> str:
    """A sentence if these runs differ so much that something else had the machine."""
    slower = sum(reply.seconds for reply in replies) / sum(reply.fastest for reply in replies)
    if slower < BUSY:
        return ""
    return (
        f" Something else is busy here: of {RUNS} runs of ar, half took {slower:.1f} times as long "
        "as the fastest, or longer, and the rates say little."
    )


def demo(path: str) -> int:
    screen = Screen()
    replies: list[list[Reply]] = [[], []]
    with Session.open(path) as first, Session.open(path) as second:
        pairs = [
            (session, session.policy(name))
            for session, name in zip((first, second), POLICIES, strict=True)
        ]
        model, engine = first.bundle.model, first.engine
        where = f"engine {engine.name}, {engine.threads} threads"
        screen.line(f"{model.name}, {model.weights} weights, {where}", BOLD)
        if screen.coloured:
            screen.line("one colour: one iteration; underlined: decided by a verify step", DIM)
        for number, (prompt, answer) in enumerate(PROMPTS, 1):
            screen.line()
            screen.column(f"{number}.")
            screen.stream(" ".join(prompt.split()), BOLD)
            screen.end()
            screen.line()
            both = timed(pairs, prompt)
            (show_beside if screen.side_by_side else show_in_turn)(screen, both)
            sizes = block_sizes(both[1].result)
            screen.note(f"tokens of hybrid's iterations (v: verified): {sizes}")
            judged = (
                f"{each.policy.name} {'right' if is_right(each.result.text, answer) else 'wrong'}"
                for each in both
            )
            screen.note(f"reference answer {answer}: {', '.join(judged)}")
            for column, reply in zip(replies, both, strict=True):
                column.append(reply)
    screen.line()
    screen.table([HEADING, *map(row, replies)])
    screen.line()
    screen.note(conclusion(*replies))
    return 0


def main() -> int:
    return run(demo)


if __name__ == "__main__":
    sys.exit(main())
