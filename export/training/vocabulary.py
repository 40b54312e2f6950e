"""A smaller vocabulary: the first ids of a byte-level BPE tokenizer are one too.

Ids are given to merges in the order they were learnt, so a prefix of the ids is the tokenizer that
learning would have given had it stopped earlier.
"""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer

from bitmtp_edge.errors import UserError


def prune_tokenizer(tokenizer_json: str, size: int, where: str = "tokenizer.json") -> str:
    """``tokenizer_json`` (Hugging Face format, model BPE) cut to its first ``size`` ids.

    UserError for another kind of tokenizer, for one with fewer ids, where a special token or a
    single byte would be lost, and where ids are not in the order of the merges.
    """
    value: dict[str, Any] = json.loads(tokenizer_json)
    model = value.get("model", {})
    if model.get("type") != "BPE":
        raise UserError(
            f"{where}: a tokenizer of kind {model.get('type')!r} cannot be cut to {size} ids: "
            "expected BPE; leave student.vocabulary out of the recipe"
        )
    vocabulary: dict[str, int] = model["vocab"]
    count = 1 + max(vocabulary.values(), default=-1)
    if size > count:
        raise UserError(f"{where}: it has {count} ids, fewer than student.vocabulary = {size}")
    kept = {token: index for token, index in vocabulary.items() if index < size}
    lost = [entry["content"] for entry in value.get("added_tokens", []) if entry["id"] >= size]
    lost += [token for token in vocabulary if len(token) == 1 and token not in kept]
    if lost:
        raise UserError(
            f"{where}: {size} ids would lose {lost[0]!r}, which every text may need: raise "
            "student.vocabulary"
        )
    merges = []
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        if left + right not in kept:
            continue
        if left not in kept or right not in kept:
            raise UserError(
                f"{where}: its ids are not in the order of its merges ({left + right!r} precedes "
                "its parts), so it cannot be cut; leave student.vocabulary out of the recipe"
            )
        merges.append(merge)
    model["vocab"], model["merges"] = kept, merges
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def first_difference(tokenizer_json: str, other_json: str, size: int) -> int | None:
    """The lowest of the first ``size`` ids that is another token in the two; None if none is."""
    tokens, others = (
        {index: token for token, index in Tokenizer.from_str(text).get_vocab().items()}
        for text in (tokenizer_json, other_json)
    )
    return next((i for i in range(size) if tokens.get(i) != others.get(i)), None)
