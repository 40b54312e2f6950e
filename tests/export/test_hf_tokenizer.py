"""The text side of Hugging Face folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.export.checkpoints import hf_tokenizer

VOCAB = ["a", "b", "<s>", "</s>", "<|eot_id|>", "<|end|>"]
TOKENIZER = json.dumps(
    {
        "version": "1.0",
        "added_tokens": [
            {
                "id": index,
                "content": VOCAB[index],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": index != 5,
            }
            for index in range(2, 6)
        ],
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": True,
        },
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": True,
        },
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(VOCAB)}, "merges": []},
    }
)


def folder(path: Path, tokenizer: str | None = TOKENIZER, **files: Any) -> Path:
    """A model folder; a keyword names a JSON file without its ending."""
    if tokenizer is not None:
        (path / "tokenizer.json").write_text(tokenizer)
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def test_tokenizer_json_alone(tmp_path: Path) -> None:
    assets = hf_tokenizer.text_assets(folder(tmp_path))
    assert assets.tokenizer_json == TOKENIZER
    assert assets.chat_template is None
    assert assets.bos_id is None
    # Known by name; <|end|> is no control token here, so it is text.
    assert assets.stop_ids == [4]


@pytest.mark.parametrize("as_object", [False, True])
def test_tokens_given_as_text_or_object(tmp_path: Path, as_object: bool) -> None:
    def token(text: str) -> Any:
        return {"content": text, "lstrip": False} if as_object else text

    config = {"bos_token": token("<s>"), "eos_token": token("</s>")}
    assets = hf_tokenizer.text_assets(folder(tmp_path, tokenizer_config=config))
    assert (assets.bos_id, assets.stop_ids) == (2, [3, 4])


@pytest.mark.parametrize(("eos", "expected"), [(1, [3, 1, 0, 4]), ([4, 1], [3, 4, 1, 0])])
def test_end_ids_of_every_file(tmp_path: Path, eos: int | list[int], expected: list[int]) -> None:
    path = folder(
        tmp_path,
        tokenizer_config={"eos_token": "</s>"},
        generation_config={"eos_token_id": eos},
        config={"eos_token_id": 0, "bos_token_id": 1},
    )
    assets = hf_tokenizer.text_assets(path)
    assert (assets.bos_id, assets.stop_ids) == (1, expected)
    folder(path, tokenizer_config={"eos_token": "</s>", "bos_token": None})
    assert hf_tokenizer.text_assets(path).bos_id is None


def named(*names: str) -> dict[str, Any]:
    return {"chat_template": [{"name": name, "template": f"T {name}"} for name in names]}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"chat_template": "plain"}, "plain"),
        ({"chat_template": None}, None),
        (named("tool_use", "default"), "T default"),
        (named("only"), "T only"),
    ],
)
def test_chat_template(tmp_path: Path, config: dict[str, Any], expected: str | None) -> None:
    path = folder(tmp_path, tokenizer_config=config)
    assert hf_tokenizer.text_assets(path).chat_template == expected
    (path / "chat_template.jinja").write_text("from the file")
    assert hf_tokenizer.text_assets(path).chat_template == "from the file"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer": None}, "has no tokenizer.json"),
        ({"tokenizer": "{}"}, "is not a tokenizer.json"),
        ({"tokenizer": "not json"}, "is not a tokenizer.json"),
        ({"tokenizer_config": []}, "holds no JSON object"),
        ({"tokenizer_config": {"eos_token": "<x>"}}, "names '<x>' as eos_token"),
        ({"tokenizer_config": {"chat_template": 3}}, "neither text nor a list"),
        ({"tokenizer_config": {"chat_template": [{"name": "x"}]}}, "neither text nor a list"),
        ({"tokenizer_config": named("rag", "tool_use")}, "chat templates rag, tool_use and none"),
        ({"generation_config": {"eos_token_id": "2"}}, "eos_token_id is '2'"),
        ({"generation_config": {"eos_token_id": [2, True]}}, "eos_token_id is"),
    ],
)
def test_damaged_folders(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        hf_tokenizer.text_assets(folder(tmp_path, **files))
    assert "\n" not in str(caught.value)


def test_a_damaged_json_file(tmp_path: Path) -> None:
    (folder(tmp_path) / "generation_config.json").write_text("{")
    with pytest.raises(UserError, match=r"generation_config.json is not JSON"):
        hf_tokenizer.text_assets(tmp_path)
    (tmp_path / "generation_config.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"is not UTF-8"):
        hf_tokenizer.text_assets(tmp_path)
