"""Texts to packed rows of token ids, once; training then reads rows.

A source is a JSONL file. Each line is ``{"text": ...}``, all of which is predicted, or
``{"messages": [{"role", "content"}, ...]}``, of which only the assistant's turns are.
"""

from __future__ import annotations

import itertools
import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bitmtp_edge.errors import UserError, describe_os_error
from bitmtp_edge.files import new_file
from bitmtp_edge.progress import Progress
from bitmtp_edge.text.chat_template import ChatTemplate

from .blocks import STARTS, TARGET
from .claim import claimed

BATCH_LINES = 4096
OPEN_ROWS = 64  # rows that wait for a sample that fills them
ROWS_FILE, FLAGS_FILE, FACTS_FILE = "rows.npy", "flags.npy", "corpus.json"
Segment = tuple[str, bool]  # a piece of a sample, tokenised alone, and whether it is predicted


@dataclass(frozen=True)
class Corpus:
    """Packed rows of one source.

    rows: token ids uint16 or int32 [R, L]. flags: uint8 [R, L], TARGET and STARTS. A sample begins
    with STARTS and never leaves its row; what no sample fills is padding, no TARGET.
    """

    rows: NDArray[np.unsignedinteger | np.signedinteger]
    flags: NDArray[np.uint8]

    @property
    def size(self) -> str:
        """Its size in words."""
        rows, length = self.rows.shape
        return f"{rows} {'row' if rows == 1 else 'rows'} of {length} tokens"

    def held_out(self, most: int, name: str) -> int:
        """Rows to keep from training: a tenth, ``most`` at most. UserError if that is none."""
        rows = min(most, len(self.rows) // 10)
        if rows == 0:
            raise UserError(
                f"source {name} has {self.size}: too few to hold one out; expected 10 rows or more"
            )
        return rows


class Encoder:
    """Samples to ids and flags. Each assistant turn is tokenised apart from what it answers, as it
    is when it is generated. The template sees the names of ``bos_id`` and ``end_id``."""

    def __init__(
        self, tokenizer_json: str, template: str | None, end_id: int, bos_id: int | None = None
    ) -> None:
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self.end_id = end_id
        self.template: ChatTemplate | None = None
        if template is not None:
            bos, end = (
                (None if token is None else self.tokenizer.id_to_token(token)) or ""
                for token in (bos_id, end_id)
            )
            self.template = ChatTemplate(template, bos_token=bos, eos_token=end)

    def segments(self, line: str, where: str) -> list[Segment]:
        """The pieces of the sample on ``line``. UserError if it is not a sample."""
        try:
            sample = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where} is not JSON: {error}") from None
        try:
            segments = self._pieces(sample)
            for text, _ in segments:
                text.encode()
        except UnicodeEncodeError:
            raise UserError(f"{where} holds half a surrogate pair, which is no text") from None
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        return segments

    def _pieces(self, sample: object) -> list[Segment]:
        if isinstance(sample, dict) and isinstance(sample.get("text"), str):
            return [(sample["text"], True)]
        messages = sample.get("messages") if isinstance(sample, dict) else None
        turns = isinstance(messages, list) and all(
            isinstance(turn, dict)
            and isinstance(turn.get("role"), str)
            and isinstance(turn.get("content"), str)
            for turn in messages
        )
        if not messages or not turns:
            raise UserError(
                'expected {"text": ...} or {"messages": [{"role": ..., "content": ...}, ...]}'
            )
        return self._turns(messages)

    def _turns(self, messages: list[dict[str, str]]) -> list[Segment]:
        if self.template is None:
            raise UserError("it has messages, but the checkpoint has no chat template")
        segments: list[Segment] = []
        shown = 0
        for index, turn in enumerate(messages):
            if turn["role"] != "assistant":
                continue
            prompt = self.template.render(messages[:index], add_generation_prompt=True)
            reply = self.template.render(messages[: index + 1], add_generation_prompt=False)
            if not reply.startswith(prompt):
                raise UserError(
                    "the chat template does not write an assistant's turn behind the prompt it "
                    "gives; train on texts instead"
                )
            segments += [(prompt[shown:], False), (reply[len(prompt) :], True)]
            shown = len(reply)
        if not segments:
            raise UserError("no message of the role assistant, so nothing to learn")
        return segments

    def encode(self, batch: list[list[Segment]]) -> Iterator[tuple[list[int], list[int]]]:
        """(ids, flags) of each sample. A sample of one text gets the end token behind it."""
        texts = [text for segments in batch for text, _ in segments]
        encoded = iter(self.tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        for segments in batch:
            ids: list[int] = []
            flags: list[int] = []
            for _, predicted in segments:
                piece = next(encoded).ids
                ids += piece
                flags += [TARGET if predicted else 0] * len(piece)
            if len(segments) == 1:
                ids.append(self.end_id)
                flags.append(TARGET)
            yield ids, flags


def build_corpus(source: Path, encoder: Encoder, length: int, vocabulary: int) -> Corpus:
    """Packs the samples of a JSONL file into rows of ``length`` tokens.

    Samples longer than a row are cut in pieces. UserError names the line that is no sample, and a
    token id that a model of ``vocabulary`` ids lacks.
    """
    tokens, flags, lengths = array("i"), array("B"), array("i")
    size = source.stat().st_size
    with source.open(encoding="utf-8") as file, Progress(size, source.name, "bytes") as progress:
        for number, lines in _batches(file, source):
            batch = [
                encoder.segments(line, f"{source}: line {number + offset}")
                for offset, line in enumerate(lines)
                if line.strip()
            ]
            for ids, marks in encoder.encode(batch):
                for first in range(0, len(ids), length):
                    piece, mark = ids[first : first + length], marks[first : first + length]
                    mark[0] |= STARTS
                    tokens.extend(piece)
                    flags.extend(mark)
                    lengths.append(len(piece))
            progress.advance(sum(len(line.encode()) for line in lines))
    if not lengths:
        raise UserError(f"{source} holds no samples")
    packed = np.frombuffer(tokens, np.int32)
    if packed.max() >= vocabulary:
        raise UserError(
            f"the tokenizer gives token id {packed.max()}, and the model has only {vocabulary}: "
            "tokenizer and weights belong to different models"
        )
    return _pack(
        packed,
        np.frombuffer(flags, np.uint8),
        np.frombuffer(lengths, np.int32),
        length,
        np.uint16 if vocabulary <= 1 << 16 else np.int32,
    )


def _batches(lines: Iterator[str], source: Path) -> Iterator[tuple[int, list[str]]]:
    """Lines in batches, each with the number of its first."""
    number = 1
    while True:
        try:
            batch = list(itertools.islice(lines, BATCH_LINES))
        except UnicodeDecodeError:
            raise UserError(
                f"{source} is not UTF-8 text (behind line {number - 1}): expected a JSONL file"
            ) from None
        if not batch:
            return
        yield number, batch
        number += len(batch)


def _pack(
    tokens: NDArray[np.int32],
    flags: NDArray[np.uint8],
    lengths: NDArray[np.int32],
    length: int,
    dtype: type[np.uint16] | type[np.int32],
) -> Corpus:
    """Best fit among a few open rows, samples in a fixed random order."""
    ends = np.cumsum(lengths, dtype=np.int64)
    order = np.random.default_rng(0).permutation(len(lengths))
    room = np.full(OPEN_ROWS, length)
    members: list[list[int]] = [[] for _ in range(OPEN_ROWS)]
    packed: list[list[int]] = []
    for sample in order.tolist():
        need = int(lengths[sample])
        left = np.where(room >= need, room - need, length + 1)
        slot = int(left.argmin())
        if left[slot] > length:  # none fits: the fullest row is done
            slot = int(room.argmin())
            packed.append(members[slot])
            members[slot], room[slot] = [], length
        members[slot].append(sample)
        room[slot] -= need
    packed += [row for row in members if row]
    rows = np.zeros((len(packed), length), dtype)
    marks = np.full((len(packed), length), STARTS, np.uint8)
    for index, row in enumerate(packed):
        at = 0
        for sample in row:
            last, count = int(ends[sample]), int(lengths[sample])
            rows[index, at : at + count] = tokens[last - count : last]
            marks[index, at : at + count] = flags[last - count : last]
            at += count
    return Corpus(rows, marks)


def cached_corpus(
    source: Path, cache: Path, encoder: Encoder, length: int, vocabulary: int, digest: str
) -> Corpus:
    """The corpus of ``source``, kept in the folder ``cache`` for the next run.

    ``digest`` names tokenizer and template: with another one, another length, or where the source
    is there and has another size, it is built again. A cache without its source is used as it is,
    so that prepared rows can be moved to the machine that trains.
    """
    present = source.is_file()
    facts = {
        "digest": digest,
        "length": length,
        "bytes": source.stat().st_size if present else None,
    }
    found = _facts(cache)
    if not present and isinstance(found, dict):
        facts["bytes"] = found.get("bytes")
    if found != facts:
        if not present:
            lack = "is no file" if source.exists() else "does not exist"
            raise UserError(
                f"{source} {lack}, and {cache} holds no rows made of it with this recipe"
            )
        with claimed(cache):
            _save(build_corpus(source, encoder, length, vocabulary), cache, facts)
    try:
        rows = np.load(cache / ROWS_FILE, mmap_mode="r")
        flags = np.load(cache / FLAGS_FILE, mmap_mode="r")
        if rows.ndim != 2 or rows.shape[1] != length or flags.shape != rows.shape:
            raise ValueError(f"rows of shape {rows.shape}, flags of {flags.shape}")
        if rows.dtype not in (np.uint16, np.int32) or flags.dtype != np.uint8:
            raise ValueError(f"rows of {rows.dtype}, flags of {flags.dtype}")
        if not 0 <= rows.min(initial=0) <= rows.max(initial=0) < vocabulary:
            raise ValueError(f"token ids outside the vocabulary of {vocabulary}")
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{cache} is damaged ({error}): delete it and prepare again") from None
    return Corpus(rows, flags)


def _facts(cache: Path) -> object:
    """What the rows in ``cache`` were made of; None where there are none."""
    try:
        return json.loads((cache / FACTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _save(corpus: Corpus, cache: Path, facts: dict[str, object]) -> None:
    try:
        (cache / FACTS_FILE).unlink(missing_ok=True)
        for name, values in ((ROWS_FILE, corpus.rows), (FLAGS_FILE, corpus.flags)):
            with new_file(cache / name) as file:
                np.save(file, values)
        with new_file(cache / FACTS_FILE) as file:
            file.write(json.dumps(facts).encode())
    except OSError as error:
        raise UserError(f"cannot write the prepared rows: {describe_os_error(error)}") from None


class RowSampler:
    """Rows of one corpus in an order that the step alone decides: every epoch a new permutation.

    The first ``held_out`` rows are kept for validation.
    """

    def __init__(self, corpus: Corpus, count: int, held_out: int, seed: int) -> None:
        self.corpus = corpus
        self.count = count
        self.held_out = held_out
        self.seed = seed
        self._epoch = -1
        self._order = np.empty(0, np.int64)

    def indices(self, step: int) -> NDArray[np.int64]:
        """Rows of ``step``: [count]."""
        usable = len(self.corpus.rows) - self.held_out
        taken = []
        for at in range(step * self.count, (step + 1) * self.count):
            epoch, place = divmod(at, usable)
            if epoch != self._epoch:
                random = np.random.default_rng((self.seed, epoch))
                self._order = self.held_out + random.permutation(usable)
                self._epoch = epoch
            taken.append(self._order[place])
        return np.array(taken, np.int64)
