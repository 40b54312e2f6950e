"""Texts to rows: what is predicted, how samples are packed, what is refused, what is kept."""

from __future__ import annotations

import errno
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: it comes with the extra 'train'")

from bitmtp_edge.errors import UserError
from bitmtp_edge.export.training import corpus as corpus_module
from bitmtp_edge.export.training.blocks import STARTS, TARGET
from bitmtp_edge.export.training.corpus import (
    Corpus,
    Encoder,
    RowSampler,
    build_corpus,
    cached_corpus,
)
from bitmtp_edge.text.chat_template import ChatTemplate
from bitmtp_edge.text.tokenizer import Tokenizer

from ..tiny_models import TEMPLATE, VOCABULARY, tokenizer_json
from .tiny_runs import write_lines

END = 2  # <|im_end|>
LENGTH = 40
TURNS = [
    {"role": "system", "content": "in the inn"},
    {"role": "user", "content": "then?"},
    {"role": "assistant", "content": " the man\n"},
    {"role": "user", "content": "\u00e9"},
    {"role": "assistant", "content": "he ate"},
    {"role": "user", "content": "never read"},
]


@pytest.fixture
def encoder() -> Encoder:
    return Encoder(tokenizer_json(), TEMPLATE, END)


def encoded(encoder: Encoder, sample: Any) -> tuple[list[int], list[int]]:
    segments = encoder.segments(json.dumps(sample), "here")
    ((ids, flags),) = encoder.encode([segments])
    return ids, flags


def build(path: Path, encoder: Encoder, length: int = LENGTH) -> Corpus:
    return build_corpus(path, encoder, length, VOCABULARY)


def samples_of(corpus: Corpus) -> Counter[tuple[int, ...]]:
    """Every sample of the rows, without padding."""
    found: Counter[tuple[int, ...]] = Counter()
    for row, flags in zip(corpus.rows.tolist(), corpus.flags.tolist(), strict=True):
        starts = [i for i, flag in enumerate(flags) if flag & STARTS]
        for first, last in zip(starts, [*starts[1:], len(row)], strict=True):
            if flags[first] & TARGET:
                found[tuple(row[first:last])] += 1
            else:
                assert row[first:last] == [0]
    return found


# ---- samples -----------------------------------------------------------------------------------


def test_all_of_a_text_is_predicted_and_its_end(encoder: Encoder) -> None:
    ids, flags = encoded(encoder, {"text": "the inn"})
    tokenizer = Tokenizer(tokenizer_json())
    assert ids == [*tokenizer.encode("the inn"), END]
    assert flags == [TARGET] * len(ids)


def test_only_the_assistants_turns_are_predicted(encoder: Encoder) -> None:
    ids, flags = encoded(encoder, {"messages": TURNS})
    tokenizer = Tokenizer(tokenizer_json())
    runs: list[list[int]] = []
    before = 0
    for token, flag in zip(ids, flags, strict=True):
        if flag == TARGET and before != TARGET:
            runs.append([])
        if flag == TARGET:
            runs[-1].append(token)
        before = flag
    replies = [" the man\n<|im_end|>\n", "he ate<|im_end|>\n"]
    assert [tokenizer.decode(run, skip_special=False) for run in runs] == replies
    assert all(END in run for run in runs)


def test_turns_are_tokenised_as_a_chat_meets_them(encoder: Encoder) -> None:
    """What precedes a reply is the prompt's ids, and the reply is tokenised by itself."""
    ids, flags = encoded(encoder, {"messages": TURNS})
    tokenizer, template = Tokenizer(tokenizer_json()), ChatTemplate(TEMPLATE)
    prompt = tokenizer.encode(template.render(TURNS[:2]))
    assert ids[: len(prompt)] == prompt and not any(flags[: len(prompt)])
    reply = tokenizer.encode(" the man\n<|im_end|>\n")
    assert ids[len(prompt) : len(prompt) + len(reply)] == reply
    whole = tokenizer.encode(template.render(TURNS[:5], add_generation_prompt=False))
    assert tokenizer.decode(ids, skip_special=False) == tokenizer.decode(whole, skip_special=False)


def test_the_template_sees_the_tokens_that_a_session_gives_it() -> None:
    template = "{{ bos_token }}" + TEMPLATE.replace("<|im_end|>", "{{ eos_token }}")
    encoder = Encoder(tokenizer_json(), template, END, bos_id=1)
    ids, _ = encoded(encoder, {"messages": TURNS[:3]})
    assert ids[0] == 1 and ids.count(END) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is not JSON: "),
        ("[" * 100_000, "is not JSON: "),
        ("7", 'expected {"text": ...} or {"messages": [{"role": ..., "content": ...}, ...]}'),
        ('{"texts": "a"}', 'expected {"text": ...}'),
        ('{"messages": []}', 'expected {"text": ...}'),
        ('{"messages": [{"role": "user"}]}', 'expected {"text": ...}'),
        ('{"messages": "hello"}', 'expected {"text": ...}'),
        ('{"messages": [{"role": "user", "content": "a"}]}', "no message of the role assistant"),
        ('{"text": "\\ud800"}', "holds half a surrogate pair, which is no text"),
        (
            '{"messages": [{"role": "assistant", "content": "\\ud800"}]}',
            "holds half a surrogate pair, which is no text",
        ),
    ],
)
def test_a_line_that_is_no_sample(
    line: str, message: str, encoder: Encoder, tmp_path: Path
) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"text": "fine"}\n\n' + line + "\n")
    with pytest.raises(UserError) as caught:
        build(path, encoder)
    assert f"{path}: line 3" in str(caught.value) and message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_number_of_a_line_far_down(encoder: Encoder, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "s.jsonl", [{"text": "a"}] * (corpus_module.BATCH_LINES + 7))
    with path.open("a") as file:
        file.write("{}\n")
    with pytest.raises(UserError, match=f"line {corpus_module.BATCH_LINES + 8}"):
        build(path, encoder)


def test_a_file_that_is_no_text(encoder: Encoder, tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_bytes(b'{"text": "\xff"}\n')
    with pytest.raises(UserError, match=r"s\.jsonl is not UTF-8 text"):
        build(tmp_path / "s.jsonl", encoder)


def test_messages_without_a_template(tmp_path: Path) -> None:
    encoder = Encoder(tokenizer_json(), None, END)
    path = write_lines(tmp_path / "s.jsonl", [{"messages": TURNS}])
    with pytest.raises(UserError, match="line 1: it has messages, but the checkpoint has no"):
        build(path, encoder)


def test_a_template_that_rewrites_the_prompt(tmp_path: Path) -> None:
    encoder = Encoder(tokenizer_json(), "{{ messages | length }}{{ add_generation_prompt }}", END)
    path = write_lines(tmp_path / "s.jsonl", [{"messages": TURNS}])
    with pytest.raises(UserError, match="does not write an assistant's turn behind the prompt"):
        build(path, encoder)


def test_a_template_that_refuses(tmp_path: Path) -> None:
    encoder = Encoder(tokenizer_json(), "{{ raise_exception('no system') }}", END)
    path = write_lines(tmp_path / "s.jsonl", [{"messages": TURNS}])
    with pytest.raises(UserError, match="line 1: the chat template refuses: no system"):
        build(path, encoder)


@pytest.mark.parametrize("content", ["", "\n\n  \n"])
def test_no_samples(content: str, encoder: Encoder, tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text(content)
    with pytest.raises(UserError, match=r"s.jsonl holds no samples"):
        build(tmp_path / "s.jsonl", encoder)


def test_ids_that_the_model_lacks(encoder: Encoder, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "s.jsonl", [{"text": "he"}])
    with pytest.raises(UserError, match=r"gives token id 261, .* only 260"):
        build_corpus(path, encoder, LENGTH, 260)


# ---- rows --------------------------------------------------------------------------------------


def random_texts(count: int, longest: int) -> list[dict[str, str]]:
    draw = random.Random(count)
    return [{"text": "".join(draw.choices("xyz", k=draw.randrange(longest)))} for _ in range(count)]


def test_packing_loses_nothing_and_crosses_no_row(encoder: Encoder, tmp_path: Path) -> None:
    texts = random_texts(700, LENGTH)
    corpus = build(write_lines(tmp_path / "s.jsonl", texts), encoder)
    expected = Counter(tuple(encoded(encoder, text)[0]) for text in texts)
    assert samples_of(corpus) == expected
    assert corpus.rows.shape == corpus.flags.shape and corpus.rows.shape[1] == LENGTH
    assert (corpus.rows.dtype, corpus.flags.dtype) == (np.uint16, np.uint8)
    tokens = sum(len(sample) * count for sample, count in expected.items())
    assert corpus.rows.size < 1.06 * tokens + 2 * LENGTH


def test_long_samples_are_cut(encoder: Encoder, tmp_path: Path) -> None:
    text = {"text": "xyz" * 50}
    corpus = build(write_lines(tmp_path / "s.jsonl", [text]), encoder)
    ids = encoded(encoder, text)[0]
    pieces = Counter(tuple(ids[i : i + LENGTH]) for i in range(0, len(ids), LENGTH))
    assert samples_of(corpus) == pieces


def test_a_line_of_a_megabyte(encoder: Encoder, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "s.jsonl", [{"text": "a " * (1 << 19)}])
    assert build(path, encoder, 4096).rows.size >= 1 << 19


def test_a_large_vocabulary_takes_wider_rows(encoder: Encoder, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "s.jsonl", [{"text": "a"}])
    assert build_corpus(path, encoder, LENGTH, 1 << 16).rows.dtype == np.uint16
    assert build_corpus(path, encoder, LENGTH, (1 << 16) + 1).rows.dtype == np.int32


# ---- prepared rows -----------------------------------------------------------------------------


def prepare(source: Path, cache: Path, length: int = LENGTH, digest: str = "d") -> Corpus:
    encoder = Encoder(tokenizer_json(), TEMPLATE, END)
    return cached_corpus(source, cache, encoder, length, VOCABULARY, digest)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The sources that were tokenised."""
    built: list[Path] = []

    def counted(source: Path, *rest: Any) -> Corpus:
        built.append(source)
        return build_corpus(source, *rest)

    monkeypatch.setattr(corpus_module, "build_corpus", counted)
    return built


def test_prepared_rows_are_used_again(tmp_path: Path, builds: list[Path]) -> None:
    source = write_lines(tmp_path / "s.jsonl", random_texts(50, LENGTH))
    first = prepare(source, tmp_path / "rows")
    again = prepare(source, tmp_path / "rows")
    assert len(builds) == 1
    assert np.array_equal(first.rows, again.rows) and np.array_equal(first.flags, again.flags)
    assert sorted(p.name for p in (tmp_path / "rows").iterdir()) == [
        "corpus.json",
        "flags.npy",
        "rows.npy",
    ]
    prepare(source, tmp_path / "rows", length=LENGTH + 1)
    prepare(source, tmp_path / "rows", length=LENGTH + 1, digest="other")
    write_lines(source, random_texts(51, LENGTH))
    found = prepare(source, tmp_path / "rows", length=LENGTH + 1, digest="other")
    assert len(builds) == 4 and found.rows.shape[1] == LENGTH + 1


def test_prepared_rows_can_be_moved_without_their_source(
    tmp_path: Path, builds: list[Path]
) -> None:
    source = write_lines(tmp_path / "s.jsonl", random_texts(50, LENGTH))
    first = prepare(source, tmp_path / "rows")
    source.unlink()
    (tmp_path / "rows").rename(tmp_path / "moved")
    assert np.array_equal(prepare(source, tmp_path / "moved").rows, first.rows)
    with pytest.raises(UserError, match=r"s.jsonl does not exist, and .*moved holds no rows made"):
        prepare(source, tmp_path / "moved", digest="other")
    with pytest.raises(UserError, match="holds no rows made of it with this recipe"):
        prepare(source, tmp_path / "nowhere")
    assert len(builds) == 1


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def another_shape(path: Path) -> None:
    np.save(path, np.zeros((3, 7), np.uint16))


def no_array(path: Path) -> None:
    path.write_bytes(b"")


def other_ids(path: Path) -> None:
    np.save(path, np.full_like(np.load(path), VOCABULARY))


def no_ids(path: Path) -> None:
    np.save(path, np.load(path).astype(np.float32))


@pytest.mark.parametrize("damage", [cut, another_shape, no_array, other_ids, no_ids, os.unlink])
def test_damaged_rows(damage: Any, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "s.jsonl", random_texts(50, LENGTH))
    prepare(source, tmp_path / "rows")
    damage(tmp_path / "rows" / "rows.npy")
    with pytest.raises(UserError, match=r"rows is damaged \(.*\): delete it and prepare") as caught:
        prepare(source, tmp_path / "rows")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("facts", ["{", "[]", "null", '{"length": 40}'])
def test_damaged_facts_are_made_anew(facts: str, tmp_path: Path, builds: list[Path]) -> None:
    source = write_lines(tmp_path / "s.jsonl", random_texts(50, LENGTH))
    prepare(source, tmp_path / "rows")
    (tmp_path / "rows" / "corpus.json").write_text(facts)
    prepare(source, tmp_path / "rows")
    assert len(builds) == 2
    source.unlink()
    (tmp_path / "rows" / "corpus.json").write_text(facts)
    with pytest.raises(UserError, match="holds no rows made of it"):
        prepare(source, tmp_path / "rows")


def test_rows_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_lines(tmp_path / "s.jsonl", random_texts(50, LENGTH))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write to .*rows: .*(Not a directory|exists)"):
        prepare(source, tmp_path / "file" / "rows")

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(UserError, match=r"cannot write the prepared rows: .*rows\.npy: No space"):
        prepare(source, tmp_path / "rows")
    assert not (tmp_path / "rows").exists()


# ---- the order of training ---------------------------------------------------------------------


def sampler(rows: int = 23, count: int = 5, held_out: int = 3, seed: int = 1) -> RowSampler:
    corpus = Corpus(np.zeros((rows, 4), np.uint16), np.zeros((rows, 4), np.uint8))
    return RowSampler(corpus, count, held_out, seed)


def test_every_epoch_takes_every_row_once() -> None:
    found = sampler()
    taken = np.concatenate([found.indices(step) for step in range(12)])  # 60 rows: three epochs
    epochs = taken.reshape(3, 20)
    for epoch in epochs:
        assert sorted(epoch) == list(range(3, 23))
    assert not np.array_equal(epochs[0], epochs[1])


def test_rows_depend_on_the_step_alone() -> None:
    straight = sampler()
    expected = {step: straight.indices(step) for step in range(12)}
    jumping = sampler()
    for step in (7, 0, 11, 3, 4):
        assert np.array_equal(jumping.indices(step), expected[step])
    assert not np.array_equal(sampler(seed=2).indices(0), expected[0])
