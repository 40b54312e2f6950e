"""A bundle made ready to answer: the one way in for ``run``, ``chat``, ``bench`` and the demo."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .bundle import TEMPLATE_FILE, TOKENIZER_FILE, Bundle
from .decode import POLICIES, check_used
from .decode.adaptive import Adaptive, Objective
from .decode.costs import CostTable
from .decode.energy_costs import PowerTable
from .decode.generate import GenerationResult, generate
from .decode.loop import Decoder
from .decode.policies import (
    AutoRegressive,
    BlockPolicy,
    ConfidenceOnly,
    Hybrid,
    NestedSelfSpeculation,
    Policy,
    SpeculativeOnly,
)
from .decode.prices import default_min_prefix
from .decode.replay_states import OneWidth, ReplayStates
from .decode.sampling import SamplingParams
from .decode.stopping import StopRules
from .engines.base import Engine
from .engines.registry import EngineOptions, open_engine
from .errors import SettingError, UserError
from .saved_costs import costs_of, power_mode, power_of
from .text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from .engines.runtimes import Runtime
    from .power.metering import Metering
    from .text.chat_template import ChatTemplate


class Session:
    """Bundle, tokenizer, chat template and engine. Use as a context manager, or call :meth:`close`.

    An engine holds one sequence: of several decoders only the newest may be in use. ``notice`` gets
    what a user should know and need not act on, a line each.
    """

    def __init__(
        self, bundle: Bundle, engine: Engine, notice: Callable[[str], None] = lambda line: None
    ) -> None:
        self.bundle = bundle
        self.engine = engine
        self.notice = notice
        self.tokenizer = Tokenizer.load(bundle.file(TOKENIZER_FILE))
        self.states = ReplayStates.of(bundle)
        self.metering: Metering | None = None
        self._sensor, self._root = "auto", Path("/")  # of open_metering: steps' power is by it too
        self._costs: dict[str | None, CostTable] = {}
        self._power: dict[tuple[str | None, str, Path], PowerTable] = {}

    @classmethod
    def open(
        cls,
        path: str | Path,
        engine: str = "auto",
        options: EngineOptions | None = None,
        notice: Callable[[str], None] = lambda line: None,
    ) -> Session:
        """Opens the bundle at ``path`` on ``engine``.

        Raises UserError for a bundle that is missing or damaged, and for an engine that is unknown
        or does not work here.
        """
        bundle = Bundle.open(path)
        return cls(bundle, open_engine(engine, bundle, options, notice), notice)

    def beside(self, runtime: Runtime) -> Session:
        """A session of the same bundle on another runtime of engine ``cuda``, with its own history
        on the same device and the same weights there. Raises UserError where this session's engine
        is another.
        """
        from .engines.cuda import CudaEngine
        from .engines.cuda_runtimes import open_beside
        from .engines.runtimes import none_of

        if not isinstance(self.engine, CudaEngine):
            raise none_of(self.engine.name)
        session = Session(self.bundle, open_beside(self.engine, runtime), self.notice)
        if not runtime.width_specialised:
            session.states = OneWidth.of(self.bundle)
        session.metering = self.metering
        return session

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The checkpoint's chat template, or None. Raises UserError if it is damaged."""
        if TEMPLATE_FILE not in self.bundle.manifest.files:
            return None
        from .text.chat_template import ChatTemplate

        path = self.bundle.file(TEMPLATE_FILE)
        try:
            source = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{path} is not UTF-8 text: export the bundle again") from None
        defaults = self.bundle.decoding
        return ChatTemplate(
            source,
            bos_token=self._token(defaults.bos_id),
            eos_token=self._token(next(iter(defaults.stop_ids), None)),
        )

    def chat_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a conversation, ready for the reply: rendered once and tokenised whole.

        messages: each with "role" and "content". Raises UserError if the bundle has no chat
        template, or its template refuses the messages.
        """
        if self.template is None:
            raise UserError(
                f"{self.bundle.path} has no chat template: its model completes text and does not "
                "chat; use  bitmtp-edge run --raw"
            )
        return self._known(self.tokenizer.encode(self.template.render(messages)))

    def prompt_ids(self, text: str, *, raw: bool = False) -> list[int]:
        """Ids of one prompt: as a user's message where the bundle has a chat template, unless
        ``raw``; else as text to go on with."""
        if raw or self.template is None:
            return self._known(self.tokenizer.encode(text, add_special=True))
        return self.chat_ids([{"role": "user", "content": text}])

    @property
    def costs(self) -> CostTable:
        """What steps cost here, in the present power mode: saved ones, or measured now, which takes
        a second or a few."""
        mode = power_mode(self._root)
        if mode not in self._costs:
            self._costs[mode] = costs_of(
                self.bundle, self.engine, self.states, self.notice, self._root
            )
        return self._costs[mode]

    @property
    def power(self) -> PowerTable:
        """What steps draw here, in the present power mode: saved, or measured now, which takes half
        a minute, by the source of :meth:`open_metering`. Raises UserError where none works, or that
        is off."""
        key = power_mode(self._root), self._sensor, self._root
        if key not in self._power:
            self._power[key] = power_of(
                self.bundle, self.engine, self.states, self.notice, self._sensor, self._root
            )
        return self._power[key]

    @property
    def policies(self) -> tuple[str, ...]:
        """Those of :data:`POLICIES` that this bundle's weights and masks can serve."""
        drafts = {"ar": True, "nested": self.bundle.decoding.gamma is not None}
        blocks = self.bundle.decoding.block is not None
        return tuple(name for name in POLICIES if drafts.get(name, blocks))

    def policy(
        self,
        name: str | None = None,
        gamma: int | None = None,
        *,
        block: int | Literal["auto"] | None = None,
        tau: float | None = None,
        min_prefix: int | Literal["auto"] | None = None,
        objective: Objective = "speed",
    ) -> Policy:
        """A policy of :data:`POLICIES`; None takes what the bundle was exported with.

        block "auto": see :class:`Adaptive`. min_prefix "auto": the best by :attr:`costs`. None: of
        block "auto", chosen as well; else the bundle's, or the block where that is shorter.
        objective: whether "auto" is to save time, or energy by :attr:`power`. Raises UserError for
        another name, a policy that the bundle cannot serve, a number out of range, and what the
        policy has no use for.
        """
        defaults = self.bundle.decoding
        name = defaults.policy if name is None else name
        if name not in POLICIES:
            raise UserError(f"no policy {name!r}: choose {' or '.join(POLICIES)}")
        if name not in self.policies:
            lack = "no base plane" if name == "nested" else "no mask embeddings"
            raise UserError(
                f"policy {name} does not fit {self.bundle.path}: its model has {lack} to draft "
                f"with; choose {' or '.join(self.policies)}"
            )
        check_used([name], gamma=gamma, block=block, tau=tau, min_prefix=min_prefix)
        if objective == "energy" and "auto" not in (block, min_prefix):
            raise SettingError(
                "objective", "energy is of block auto and min-prefix auto alone: add block auto"
            )
        if name == "ar":
            return AutoRegressive()
        if name == "nested":
            gamma = defaults.gamma if gamma is None else gamma
            assert gamma is not None, "a bundle that serves policy nested has a gamma"
            return NestedSelfSpeculation(gamma, defaults.kv4_from_segment, defaults.recent_n)
        trained = defaults.block
        assert trained is not None, "a bundle that serves a block policy has a block"
        adaptive = block == "auto"
        size = trained if block in (None, "auto") else self._checked_block(int(block), trained)
        number = None if min_prefix == "auto" else min_prefix
        made = self._block_policy(name, size, tau, number)
        if not adaptive and min_prefix != "auto":
            return made
        power = self.power if objective == "energy" else None
        if adaptive:
            return Adaptive(made, self.costs, power=power, any_prefix=number is None)
        if isinstance(made, Hybrid):
            best = default_min_prefix(made, self.costs, self.states, power)
            return replace(made, min_prefix=best)
        return made

    def _block_policy(
        self, name: str, block: int, tau: float | None, min_prefix: int | None
    ) -> BlockPolicy:
        defaults = self.bundle.decoding
        assert defaults.tau is not None and defaults.min_prefix is not None
        if name == "speculative":
            return SpeculativeOnly(block)
        tau = defaults.tau if tau is None else tau
        if name == "confidence":
            return ConfidenceOnly(block, tau)
        return Hybrid(
            block, tau, min(defaults.min_prefix, block) if min_prefix is None else min_prefix
        )

    def _checked_block(self, block: int, trained: int) -> int:
        if block > trained:
            raise SettingError(
                "block",
                f"is {block}, but this model was trained for blocks of {trained} tokens: "
                f"expected 2 to {trained}",
            )
        if block != trained and self.bundle.model.block_attention == "full":
            raise SettingError(
                "block",
                f"is {block}, but this model was trained with full attention in blocks of "
                f"{trained} tokens, and drafts in no other: leave the block out",
            )
        return block

    def decoder(
        self,
        policy: Policy | None = None,
        *,
        sampling: SamplingParams | None = None,
        context: int | None = None,
    ) -> Decoder:
        """A decoder of a new sequence; ``context`` limits it below what the bundle serves.

        Raises UserError if the policy's steps fit none of the bundle's replay states.
        """
        policy = self.policy() if policy is None else policy
        return Decoder(self.engine, self.states, policy, sampling=sampling, context=context)

    def stop_rules(self, stop_strings: Iterable[str] = ()) -> StopRules:
        """The model's stop tokens, and ``stop_strings``. Raises UserError for an empty string."""
        return StopRules(frozenset(self.bundle.decoding.stop_ids), tuple(stop_strings))

    def reply(
        self,
        decoder: Decoder,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        rules: StopRules | None = None,
        on_text: Callable[[str], None] | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> GenerationResult:
        """:func:`generate` with this session's tokenizer; without ``rules``, its stop tokens."""
        rules = self.stop_rules() if rules is None else rules
        return generate(
            decoder,
            self.tokenizer,
            prompt_ids,
            max_new_tokens,
            rules,
            on_text,
            on_prefill,
            self.metering,
        )

    def open_metering(self, source: str = "auto", root: Path = Path("/")) -> Metering:
        """A meter of what this session's steps run on, by ``source`` (``off``: none), or none and
        the reason. Give it to :attr:`metering` for replies to tell their energy, and close it.

        :attr:`power` is by the same source from then on. Raises UserError for a source that is
        named and does not work.
        """
        from .power.metering import Metering
        from .power.source import Where

        on_gpu = self.engine.device is not None
        metering = Metering.open(source, Where(root, gpu=self.engine.gpu), on_gpu)
        self._sensor, self._root = metering.source or source, root
        return metering

    def close(self) -> None:
        """Closes the engine."""
        self.engine.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _known(self, ids: list[int]) -> list[int]:
        """``ids``, all of which the model has. Raises UserError for another: a tokenizer may have
        tokens that its model never learnt."""
        stray = max(ids, default=0)
        if stray >= self.bundle.model.vocab_size:
            raise UserError(
                f"the text has token {stray}, {self.tokenizer.token_of(stray)!r}, and the model of "
                f"{self.bundle.path} has only {self.bundle.model.vocab_size}: leave it out"
            )
        return ids

    def _token(self, index: int | None) -> str:
        return "" if index is None else self.tokenizer.token_of(index) or ""
