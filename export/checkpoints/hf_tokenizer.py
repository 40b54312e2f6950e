"""The text side of a Hugging Face model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bitmtp_edge.errors import UserError
from bitmtp_edge.export.checkpoints.text_assets import END_OF_TURN, TextAssets, ordered_stop_ids
from bitmtp_edge.text.tokenizer import Tokenizer


def text_assets(folder: str | Path) -> TextAssets:
    """Read tokenizer.json, tokenizer_config.json, chat_template.jinja and both configs.

    tokenizer.json is taken as it is; the other files are optional. Stop ids are those of
    generation_config.json, of tokenizer_config.json and of config.json, then control tokens that
    end a turn by their name. Raises UserError for a file that is missing or damaged.
    """
    folder = Path(folder)
    tokenizer_json = _read(folder / "tokenizer.json")
    if tokenizer_json is None:
        raise UserError(
            f"{folder} has no tokenizer.json: load it once with transformers' AutoTokenizer and "
            "save_pretrained it there"
        )
    tokenizer = Tokenizer(tokenizer_json, str(folder / "tokenizer.json"))
    named = _read_object(folder / "tokenizer_config.json")
    generation = _read_object(folder / "generation_config.json")
    config = _read_object(folder / "config.json")

    bos_id = _named_id(tokenizer, named, "bos_token")
    if "bos_token" not in named:  # an explicit null means that there is none
        bos_id = next(iter(_ids(config, "bos_token_id")), None)
    eos_id = _named_id(tokenizer, named, "eos_token")
    return TextAssets(
        tokenizer_json=tokenizer_json,
        chat_template=_chat_template(folder, named),
        bos_id=bos_id,
        stop_ids=ordered_stop_ids(
            [
                *([] if eos_id is None else [eos_id]),
                *_ids(generation, "eos_token_id"),
                *_ids(config, "eos_token_id"),
            ],
            (index for index in tokenizer.special_ids if tokenizer.token_of(index) in END_OF_TURN),
        ),
    )


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}): download it again") from error


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file, with its name for errors; empty if there is no file."""
    text = _read(path)
    try:
        value = {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}; download it again") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} holds no JSON object: download it again")
    return value


def _named_id(tokenizer: Tokenizer, config: dict[str, Any], key: str) -> int | None:
    """The id of a token given as text, or as the object of an added token."""
    token = config.get(key)
    if isinstance(token, dict):
        token = token.get("content")
    if token is None:
        return None
    index = tokenizer.id_of(str(token))
    if index is None:
        raise UserError(
            f"tokenizer_config.json names {token!r} as {key}, which tokenizer.json lacks: "
            "the two files belong to different models"
        )
    return index


def _ids(config: dict[str, Any], key: str) -> list[int]:
    """The ids under a key that holds one, several, or null."""
    value = config.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(index) is int and index >= 0 for index in ids):
        raise UserError(
            f"{key} is {value!r} in config.json or generation_config.json: expected a token id or "
            "a list of them; mend the file"
        )
    return ids


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    """The template file if there is one, else the tokenizer config's only or default template."""
    from_file = _read(folder / "chat_template.jinja")
    if from_file is not None:
        return from_file
    template = config.get("chat_template")
    if template is None or isinstance(template, str):
        return template
    try:
        templates = {entry["name"]: str(entry["template"]) for entry in template}
    except (KeyError, TypeError) as error:
        raise UserError(
            "chat_template in tokenizer_config.json is neither text nor a list of named templates"
        ) from error
    chosen = templates.get("default")
    if chosen is None and len(templates) == 1:
        (chosen,) = templates.values()
    if chosen is None:
        raise UserError(
            f"tokenizer_config.json has chat templates {', '.join(sorted(templates))} and none "
            "named default: put the one you want into chat_template.jinja beside it"
        )
    return chosen
