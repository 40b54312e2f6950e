"""What every policy makes of a set of tasks: right answers, tokens an iteration, rates.

Each item is decoded by all policies before the next, forwards and backwards by turns, and tasks
take turns item by item. So what the machine does meanwhile touches all policies alike, and an
interrupt leaves the same items for every policy, of every task. Decoding is greedy. AR decodes each
item once, and every comparison of that bundle is with that reply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .bundle import BUNDLE_FILE, sha256_of
from .decode.generate import GenerationResult
from .decode.policies import AutoRegressive, Policy
from .environment import environment
from .errors import UserError
from .evaluation_report import (
    Average,
    BundleFacts,
    EvalReport,
    ItemRow,
    PolicyFigures,
    TaskFacts,
    TaskFigures,
)
from .scoring import Item, Task, distinct_ngrams, final_answer, is_right
from .session import Session

WARM_UP_TOKENS = 8
NGRAM = 4
LEAST_DISTINCT = 0.6


@dataclass(eq=False)
class _Route:
    """A policy on a bundle."""

    session: Session
    policy: Policy
    baseline: bool = False


class Evaluation:
    """The replies of ``policies``, and of AR, to ``tasks``; AR alone of ``baseline``.

    ``policies`` may hold AR, which is decoded once all the same. Raises UserError, before any step,
    for a prompt that leaves the context no room for a reply, and for a policy that fits no replay
    state.
    """

    def __init__(
        self,
        session: Session,
        policies: Iterable[Policy],
        tasks: Sequence[Task],
        *,
        baseline: Session | None = None,
        max_new_tokens: int = 320,
    ) -> None:
        self.tasks = list(tasks)
        self.max_new_tokens = max_new_tokens
        self.interrupted = False
        self._environment = environment(session.engine)
        self._ar = _Route(session, AutoRegressive())
        self._baseline = None
        if baseline is not None:
            self._baseline = _Route(baseline, AutoRegressive(), baseline=True)
        others = [each for each in policies if not isinstance(each, AutoRegressive)]
        self._routes = [self._ar, *(_Route(session, each) for each in others)]
        if self._baseline is not None:
            self._routes.insert(0, self._baseline)
        for route in self._routes:
            route.policy.check(route.session.states)
        self._done: dict[str, list[dict[_Route, GenerationResult]]] = {t.name: [] for t in tasks}
        self._prompts = {
            opened: {task.name: _prompt_ids(opened, task) for task in self.tasks}
            for opened in ((session,) if baseline is None else (session, baseline))
        }

    @property
    def total(self) -> int:
        """Replies that :meth:`run` decodes."""
        return len(self._routes) * sum(len(task.items) for task in self.tasks)

    def run(self, on_reply: Callable[[str], None] = lambda task: None) -> None:
        """Decodes all replies; ``on_reply`` gets the task of each.

        An interrupt ends it early: ``interrupted`` then tells so, and the items that every policy
        has replied to stay. One that comes before the first of them is passed on.
        """
        for route in self._routes:  # plans are made, and weights read from disk, at first use
            _whole(self._reply(route, self.tasks[0].name, 0, WARM_UP_TOKENS))
        longest = max(len(task.items) for task in self.tasks)
        turns = [(t.name, i) for i in range(longest) for t in self.tasks if i < len(t.items)]
        try:
            for number, (task, item) in enumerate(turns):
                replies = {}
                for route in self._routes if number % 2 == 0 else reversed(self._routes):
                    replies[route] = _whole(self._reply(route, task, item))
                    on_reply(task)
                self._done[task].append(replies)
        except KeyboardInterrupt:
            if not any(self._done.values()):
                raise
            self.interrupted = True

    def report(self) -> EvalReport:
        """The figures of the items so far, of the tasks that have any."""
        done = [task for task in self.tasks if self._done[task.name]]
        return EvalReport(
            interrupted=self.interrupted,
            bundle=_bundle_facts(self._ar.session),
            baseline=_bundle_facts(self._baseline.session) if self._baseline else None,
            environment=self._environment,
            max_new_tokens=self.max_new_tokens,
            tasks=[
                TaskFacts(t.name, t.scored, t.apart, len(t.items), len(self._done[t.name]))
                for t in self.tasks
            ],
            policies=[self._policy_figures(route, done) for route in self._routes],
        )

    def _reply(
        self, route: _Route, task: str, item: int, limit: int | None = None
    ) -> GenerationResult:
        ids = self._prompts[route.session][task][item]
        decoder = route.session.decoder(route.policy)
        return route.session.reply(decoder, ids, limit or self.max_new_tokens)

    def _replies(self, route: _Route, task: str) -> list[GenerationResult]:
        """Of the items so far, in their order."""
        return [turn[route] for turn in self._done[task]]

    def _rate(self, route: _Route, task: str) -> float:
        """Decode tokens/s."""
        replies = self._replies(route, task)
        return _over(sum(r.generated_tokens for r in replies), sum(r.decode_s for r in replies))

    def _policy_figures(self, route: _Route, tasks: Sequence[Task]) -> PolicyFigures:
        rows = {task.name: self._item_rows(route, task) for task in tasks}
        figures = {task.name: self._task_figures(route, task, rows[task.name]) for task in tasks}
        counted = [task.name for task in tasks if task.scored and not task.apart]
        return PolicyFigures(
            baseline=route.baseline,
            policy=route.policy.name,
            lossless=route.policy.lossless,
            settings=route.policy.settings,
            tasks=list(figures.values()),
            average=self._average(route, [figures[name] for name in counted]) if counted else None,
            replies=[row for task in tasks for row in rows[task.name]],
        )

    def _item_rows(self, route: _Route, task: Task) -> list[ItemRow]:
        ar = self._replies(self._ar, task.name)
        return [
            _item_row(
                task.name,
                index,
                task.items[index],
                reply,
                None if route.baseline else reply.token_ids == ar[index].token_ids,
            )
            for index, reply in enumerate(self._replies(route, task.name))
        ]

    def _task_figures(self, route: _Route, task: Task, rows: Sequence[ItemRow]) -> TaskFigures:
        replies = self._replies(route, task.name)
        tokens = sum(row.generated_tokens for row in rows)
        iterations = sum(row.iterations for row in rows)
        confident = [length for reply in replies for length in reply.confident_lengths]
        accepted = [length for reply in replies for length in reply.accepted_lengths]
        distinct = [row for row in rows if row.distinct_4grams >= LEAST_DISTINCT]
        different = [row.item for row in rows if row.same_as_ar is False]
        rate = self._rate(route, task.name)
        return TaskFigures(
            task=task.name,
            score=100 * sum(row.right is True for row in rows) / len(rows) if task.scored else None,
            generated_tokens=tokens,
            iterations=iterations,
            decode_s=sum(row.decode_s for row in rows),
            tokens_per_iteration=_over(tokens, iterations),
            verified_share=_over(sum(row.verified for row in rows), iterations),
            mean_confident=_mean(confident) if confident else None,
            mean_accepted=_mean(accepted) if route.policy.max_drafts else None,
            tokens_per_s=rate,
            speedup_over_ar=None
            if route.baseline
            else _speedup(rate, self._rate(self._ar, task.name)),
            speedup_over_baseline=_speedup(rate, self._rate(self._baseline, task.name))
            if self._baseline
            else None,
            distinct_4grams=_mean([row.distinct_4grams for row in rows]),
            repetitive=[row.item for row in rows if row.distinct_4grams < LEAST_DISTINCT],
            tokens_per_iteration_distinct=_over(
                sum(row.generated_tokens for row in distinct),
                sum(row.iterations for row in distinct),
            )
            if distinct
            else None,
            same_as_ar=None if route.baseline else 1 - len(different) / len(rows),
            different=None if route.baseline else different,
            cut=sum(row.finish_reason != "stop" for row in rows),
        )

    def _average(self, route: _Route, figures: Sequence[TaskFigures]) -> Average:
        def mean(name: str) -> Any:
            values = [getattr(each, name) for each in figures]
            return None if None in values else _mean(values)

        def speedup(other: _Route | None) -> float | None:
            if other is None:
                return None
            return _speedup(
                mean("tokens_per_s"), _mean([self._rate(other, f.task) for f in figures])
            )

        return Average(
            tasks=len(figures),
            score=mean("score"),
            tokens_per_iteration=mean("tokens_per_iteration"),
            verified_share=mean("verified_share"),
            mean_confident=mean("mean_confident"),
            mean_accepted=mean("mean_accepted"),
            tokens_per_s=mean("tokens_per_s"),
            speedup_over_ar=speedup(None if route.baseline else self._ar),
            speedup_over_baseline=speedup(self._baseline),
            distinct_4grams=mean("distinct_4grams"),
            tokens_per_iteration_distinct=mean("tokens_per_iteration_distinct"),
            same_as_ar=mean("same_as_ar"),
        )


def _item_row(
    task: str, index: int, item: Item, reply: GenerationResult, same_as_ar: bool | None
) -> ItemRow:
    scored = item.answer is not None
    return ItemRow(
        task=task,
        item=index,
        text=reply.text,
        answer=final_answer(reply.text) if scored else None,
        right=None if item.answer is None else is_right(reply.text, item.answer),
        same_as_ar=same_as_ar,
        finish_reason=reply.finish_reason,
        prompt_tokens=reply.prompt_tokens,
        generated_tokens=reply.generated_tokens,
        iterations=reply.iterations,
        verified=sum(reply.verified),
        prefill_s=reply.prefill_s,
        decode_s=reply.decode_s,
        distinct_4grams=distinct_ngrams(reply.token_ids, NGRAM),
    )


def _prompt_ids(session: Session, task: Task) -> list[list[int]]:
    found = [session.prompt_ids(item.prompt) for item in task.items]
    for index, ids in enumerate(found):
        if not 1 <= len(ids) < session.states.context:
            raise UserError(
                f"task {task.name!r}, item {index}: the prompt has {len(ids)} tokens, expected 1 "
                f"to {session.states.context - 1}: the context of {session.bundle.path} is "
                f"{session.states.context}"
            )
    return found


def _whole(reply: GenerationResult) -> GenerationResult:
    """``reply``; one that an interrupt ended is none."""
    if reply.finish_reason == "interrupted":
        raise KeyboardInterrupt
    return reply


def _bundle_facts(session: Session) -> BundleFacts:
    bundle = session.bundle
    return BundleFacts(str(bundle.path), bundle.model.name, sha256_of(bundle.path / BUNDLE_FILE))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _over(total: float, count: float) -> float:
    return total / count if count else 0.0


def _speedup(rate: float, other: float) -> float | None:
    return rate / other if rate and other else None
