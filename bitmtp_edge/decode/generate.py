"""One reply: the decoding loop tied to the rules that end it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from bitmtp_edge.decode.loop import Decoder, Iteration
from bitmtp_edge.decode.stopping import StopRules, StopScanner
from bitmtp_edge.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bitmtp_edge.power.metering import Metering
    from bitmtp_edge.power.report import EnergyReport

NOT_MEASURED = "no meter was asked for"

FinishReason = Literal["stop", "length", "context", "interrupted"]


@dataclass(frozen=True)
class GenerationResult:
    """A reply and its figures; ``dataclasses.asdict`` of it is what ``run --json`` prints.

    finish_reason: "stop", a stop token or stop string; "length", max_new_tokens were generated;
    "context", the context was full before that; "interrupted", Ctrl-C. stop_string: the one that
    ended the reply, or None.

    reused_tokens: prompt tokens whose rows were kept from the turn before. iterations, draft_steps,
    verify_steps: of the decoding loop, without prefill. accepted_lengths: committed drafts of each
    iteration; what follows the end of the reply in its block is counted here, and nowhere else.
    confident_lengths: the confidence prefix of each iteration, empty for a policy that asks for
    none. verified: whether a verify step decided, for each iteration.
    drafted_tokens: drafts of these iterations, accepted or not.
    tokens_per_iteration is generated_tokens / iterations. decode_s starts after prefill, and
    tokens_per_s is generated_tokens / decode_s. A quotient is 0 where its divisor is.

    sampling: as asked for, with the seed drawn where none was given (a greedy reply needs none).

    energy: an :class:`EnergyReport` as a dict, whose figures may be None too, with their reason.
    energy_reason: why there is none, where there is none.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_string: str | None
    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    iterations: int
    tokens_per_iteration: float
    accepted_lengths: list[int]
    confident_lengths: list[int]
    verified: list[bool]
    drafted_tokens: int
    draft_steps: int
    verify_steps: int
    prefill_s: float
    decode_s: float
    tokens_per_s: float
    engine: str
    policy: str
    policy_settings: dict[str, Any]
    sampling: dict[str, Any]
    energy: dict[str, Any] | None = None
    energy_reason: str | None = NOT_MEASURED

    @property
    def joules_per_token(self) -> float | None:
        """Of decoding; None where no meter gave a figure."""
        return None if self.energy is None else self.energy["joules_per_token"]

    @property
    def watts(self) -> float | None:
        """Mean of decoding; likewise."""
        return None if self.energy is None else self.energy["decode"]["mean_w"]

    @property
    def no_joules(self) -> str | None:
        """Why there is no figure of decoding; None where there is one."""
        return self.energy_reason if self.energy is None else self.energy["decode"]["reason"]


def generate(
    decoder: Decoder,
    tokenizer: Tokenizer,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    stop_rules: StopRules,
    on_text: Callable[[str], None] | None = None,
    on_prefill: Callable[[int, int], None] | None = None,
    metering: Metering | None = None,
) -> GenerationResult:
    """Decodes the reply to ``prompt_ids``; ``on_text`` gets its text as it becomes certain.

    Afterwards the decoder's sequence is the prompt and ``token_ids``, so that a next turn which
    begins with them prefills only what is new. Ctrl-C ends the reply, not the program: the result
    is then the part whose text was released. ``metering`` measures the reply's energy, and waits
    behind its last token for the sensor's next value. Raises UserError, before any step, for a
    prompt that the context cannot hold, or ``max_new_tokens`` below 1.
    """
    scanner = StopScanner(tokenizer, stop_rules, max_new_tokens)
    room = decoder.context - len(prompt_ids)
    if 1 <= room < max_new_tokens:
        scanner = StopScanner(tokenizer, stop_rules, room)
    reason: FinishReason = "interrupted"
    done: list[Iteration] = []
    reused = 0
    decode_began: float | None = None
    steps = dict(decoder.steps)
    window = None if metering is None else metering.begin()
    began = perf_counter()
    try:
        reused = decoder.prefill(prompt_ids, on_prefill)
        steps = dict(decoder.steps)
        decode_began = perf_counter()
        if window is not None:
            window.mark_decode()
        for iteration in decoder.iterations(len(prompt_ids) + max_new_tokens):
            done.append(iteration)
            result = scanner.push(iteration.tokens)
            if result.text and on_text is not None:
                on_text(result.text)
            if result.finish_reason is not None:
                reason = result.finish_reason
                break
    except KeyboardInterrupt:
        pass
    except BaseException:
        if window is not None:
            window.abandon()
        raise
    ended = perf_counter()
    token_ids = scanner.ids
    energy: EnergyReport | None = None
    if window is not None:
        if decode_began is None:
            window.mark_decode()
        try:
            energy = window.end(len(token_ids))
        except KeyboardInterrupt:
            window.abandon()
            raise
    decoder.truncate(len(prompt_ids) + len(token_ids))
    if reason == "length" and len(token_ids) < max_new_tokens:
        reason = "context"
    prefill_s = (ended if decode_began is None else decode_began) - began
    decode_s = ended - began - prefill_s
    return GenerationResult(
        text=tokenizer.decode(token_ids),
        token_ids=token_ids,
        finish_reason=reason,
        stop_string=scanner.stop_string if reason == "stop" else None,
        prompt_tokens=len(prompt_ids),
        reused_tokens=reused,
        generated_tokens=len(token_ids),
        iterations=len(done),
        tokens_per_iteration=len(token_ids) / len(done) if done else 0.0,
        accepted_lengths=[iteration.accepted for iteration in done],
        confident_lengths=[it.confident for it in done if it.confident is not None],
        verified=[iteration.verified for iteration in done],
        drafted_tokens=sum(iteration.drafted for iteration in done),
        draft_steps=decoder.steps["draft"] - steps["draft"],
        verify_steps=decoder.steps["verify"] - steps["verify"],
        prefill_s=prefill_s,
        decode_s=decode_s,
        tokens_per_s=len(token_ids) / decode_s if decode_s > 0 else 0.0,
        engine=decoder.engine.name,
        policy=decoder.policy.name,
        policy_settings=decoder.policy.settings,
        sampling=asdict(decoder.choice.params),
        energy=None if energy is None else asdict(energy),
        energy_reason=_why_none(metering, energy),
    )


def _why_none(metering: Metering | None, energy: EnergyReport | None) -> str | None:
    if energy is not None:
        return None
    return NOT_MEASURED if metering is None else metering.reason
