"""Records what llama.cpp makes of odd texts, for tests/export/test_gguf_tokenizer.py.

    pip install llama-cpp-python gguf
    python tests/text/record_tokenizer_cases.py SmolLM2-135M-Instruct.Q4_1.gguf

Writes tests/data/tokenizer_*.json. Needed only after a change of the texts or the metadata below.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
import llama_cpp

DATA = Path(__file__).parents[1] / "data"
PRE_TOKENIZERS = ("smollm", "llama-bpe", "qwen2", "gpt-2", "default")

TEXTS = [
    # Neighbours of a byte without a token, which would merge if it were not there.
    *("-\x04>", "->", "-!>", ">", "\u6f22\x04->\U00040000->!"),
    "",
    *(" " * count for count in (1, 2, 3, 7, 16, 33)),
    *("\n" * count for count in (1, 2, 5)),
    *(
        "\t",
        "\t\t\t",
        "\r",
        "\r\n\r\n",
        " \n",
        "\n ",
        " \n \n  x",
        "a \t b\n\n\n  c  ",
        "x  ",
        "  x",
    ),
    *("Hello, world!", "hello world", " hello world", "HELLO WORLD", "heLLo wOrLd"),
    *("I'm you're he'd we've they'll it's don't", "I'M YOU'RE HE'D WE'VE THEY'LL IT'S DON'T"),
    *("'s", " 's", "''s", "'\u017f", "\u2019s it\u2019s", "rock'n'roll", "'tis 'twas 'Re'LL"),
    *(
        "0",
        "42",
        " 42",
        "007",
        "1234567890",
        "3.14159",
        "1,000,000",
        "2024-02-29T23:59:60Z",
        "x1y22z333",
    ),
    *(
        "\u00b2\u00b3\u00bd",
        "\u2167 \u216b",
        "\u0661\u0662\u0663",
        "\uff11\uff12",
        "1\u00a02",
        "\U0001d7d8\U0001d7e1",
    ),
    *(
        "caf\u00e9",
        "cafe\u0301",
        "na\u00efve \u00c5ngstr\u00f6m",
        "stra\u00dfe STRASSE",
        "\u0130stanbul \u0131",
    ),
    *(
        "\u6f22\u5b57",
        "\u4f60\u597d\uff0c\u4e16\u754c\uff01",
        "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c",
        "\ud55c\uad6d\uc5b4 \uc785\ub2c8\ub2e4",
    ),
    *("\u30a2\uff71\u30ab\u3099", "\U00020000\U0002a6d6", "\u6f22 \u5b57  1\u6f22"),
    *(
        "\U0001f600",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
        "\U0001f3f3\ufe0f\u200d\U0001f308",
    ),
    *(
        "\U0001f44d\U0001f3fd ok",
        "\U0001f1e8\U0001f1ed\U0001f1ea\U0001f1fa",
        "1\ufe0f\u20e3",
        "\u2764\ufe0f\u2764",
    ),
    *(
        "a\u0300\u0301\u0302\u0303\u0304",
        "\u0e17\u0e35\u0e48\u0e19\u0e35\u0e48",
        "\u0928\u092e\u0938\u094d\u0924\u0947",
        "Z\u0351\u036b\u0343algo",
    ),
    *(
        "\u0627\u0644\u0639\u0631\u0628\u064a\u0629",
        "\u05e9\u05dc\u05d5\u05dd abc \u05e2\u05d5\u05dc\u05dd",
        "\u202eabc\u202c \u200fx\u200e",
    ),
    *(
        "\u0420\u0443\u0441\u0441\u043a\u0438\u0439 \u0442\u0435\u043a\u0441\u0442",
        "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac",
    ),
    *(f"{chr(code)}" for code in range(0x20) if chr(code) not in "\t\n\r"),
    *(
        "\x7f",
        "a\x7fb",
        "".join(map(chr, range(0x20))),
        "a\x00b",
        "\x00\x00",
        "th\x04e",
        "the\x04",
        "\x04 the",
    ),
    *(
        "\u0085x",
        "a\u00a0b",
        "a\u1680b",
        "\u2002\u2003\u2009x",
        "a\u2028b\u2029c",
        "a\u202fb\u205fc",
        "\u3000\u3000x",
        "a\u200bb",
    ),
    *(
        "\ufeffx",
        "x\ufeff",
        "\ufffd",
        "\ufffe",
        "\u00ad\u034f\u180e",
        "\U000e0041\U000e007f",
        "\ue000\U000f0000\U0010ffff",
    ),
    *("\U00040000", "a\U00040000b", "\U00040000 \U00050000", "\U000c0000the"),
    "def f(x: int) -> str:\n    return f'{x!r:>8}'\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 2; } // done\n",
    "#include <stdio.h>\r\nint main(void)\r\n{\r\n\treturn 0;\r\n}\r\n",
    "SELECT * FROM t WHERE a >= 10 AND b <> 'it''s';",
    '{"key": [1, 2.5e-3, null, true], "s": "\\u00e9\\n"}',
    '<div class="a b">x &amp; y</div><!-- c --></s>',
    "https://example.org:8080/a/b%20c?q=1&r=x+y#frag",
    "mail@example.org \\\\server\\share C:\\Users\\x ~/.bashrc $HOME `ls -l`",
    *(
        "...",
        "\u2026",
        "!!!???",
        "--->",
        "a-b_c.d",
        "$100 \u20ac5 \u00a37",
        "(a)[b]{c}<d>",
        "~^|+=<>$",
    ),
    *(
        "\u201cquoted\u201d \u2018single\u2019 \u00abfr\u00bb",
        "a\u2014b \u2013 c",
        "x\u00d7y \u2260 \u221e",
        "\u2211\u222b\u2202",
    ),
    "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|><|im_end|><|endoftext|>",
    *("<|im_start|> x", "x <|im_end|> y", "  <|im_end|>  ", "1<|im_end|>2", "\n<|im_start|>\n"),
    *(
        "<|im_end",
        "im_end|>",
        "<| im_end |>",
        "<|IM_END|>",
        "<<|im_end|>>",
        "<|im_<|im_end|>end|>",
        "<|im_end|",
        "|><|",
    ),
    *(
        "<repo_name>a<file_sep>b",
        "<reponame><filename>",
        "<tool>x</tool>",
        "a<tool>",
        "<s>",
        "</s>",
        "[INST]",
        "<0x0A>",
        "<unk>",
    ),
    *(
        "a" * 300,
        "ab" * 150,
        " a" * 100,
        "1" * 100,
        "!" * 100,
        "\u6f22" * 60,
        " \n" * 40,
        "\U0001f600" * 30,
        "\x04" * 50,
    ),
    "The quick brown fox jumps over the lazy dog. " * 4,
    "mix: caf\u00e9 \u6f22\u5b57 12\u00b2 it's \U0001f469\u200d\U0001f4bb\t\x04\u00a0<|im_end|>\n\n"
    "\u05e9\u05dc\u05d5\u05dd",
]

# Every second text is enough to tell the pre-tokenizers apart.
PRE_TEXTS = TEXTS[::2]


def smollm2_metadata(path: str) -> dict[str, Any]:
    fields = gguf.GGUFReader(path).fields
    return {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.")}


def synthetic_metadata() -> dict[str, Any]:
    """A vocabulary small enough to keep: single bytes but four, some merges, every token type."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    character = dict(zip(printable, map(chr, printable), strict=True))
    character |= {byte: chr(0x100 + index) for index, byte in enumerate(others)}
    absent = {0x04, 0x21, 0xC0, 0xF1}  # one of them, "!", is an everyday character
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>"]
    types = [3, 3, 3, 2]
    tokens += [character[byte] for byte in range(256) if byte not in absent]
    words = [
        "the",
        "he",
        "in",
        "ing",
        "er",
        "hello",
        "world",
        "12",
        "123",
        "'s",
        "\u6f22",
        "\U0001f600",
    ]
    words += ["->", "  ", "    ", "\n\n", " the", " h", " w", "\u00e9", "ab", "aba"]
    merges: list[str] = []
    for word in words:
        parts = [character[byte] for byte in word.encode()]
        while len(parts) > 1:
            left, right = parts[:2]
            parts[:2] = [left + right]
            if left + right not in tokens:
                tokens.append(left + right)
                merges.append(f"{left} {right}")
    tokens.append("Ġthere")  # no merges make it: only a pre-tokenizer of whole words can
    types += [1] * (len(tokens) - len(types))
    for token, kind in [("<tool>", 4), ("[PAD]", 5), ("", 5), ("<|eot_id|>", 1)]:
        tokens.append(token)
        types.append(kind)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": True,
    }


def load(metadata: dict[str, Any], path: str) -> llama_cpp.Llama:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(64)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in metadata.items():
        if type(value) is int:
            writer.add_uint32(key, value)  # llama.cpp takes an id in no other type
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return llama_cpp.Llama(path, vocab_only=True, verbose=False)


def ids(model: llama_cpp.Llama, text: str, special: bool, bos: bool = False) -> list[int]:
    return model.tokenize(text.encode(), add_bos=bos, special=special)


def write(name: str, cases: dict[str, Any]) -> None:
    reference = f"llama.cpp in llama-cpp-python {llama_cpp.__version__}, vocab_only"
    document = {"reference": reference, **cases}
    lines = json.dumps(document, ensure_ascii=True, separators=(",", ":"))
    (DATA / name).write_text(lines.replace('},{"text"', '},\n{"text"') + "\n")


def main(path: str) -> None:
    assert len(set(TEXTS)) == len(TEXTS)
    smollm2, synthetic = smollm2_metadata(path), synthetic_metadata()
    with tempfile.TemporaryDirectory() as folder:
        model = load(smollm2, f"{folder}/smollm2.gguf")
        cases = [
            {"text": text, "special": ids(model, text, True), "plain": ids(model, text, False)}
            for text in TEXTS
        ]
        write("tokenizer_smollm2_cases.json", {"cases": cases})

        models = {
            pre: load(synthetic | {"tokenizer.ggml.pre": pre}, f"{folder}/{pre}.gguf")
            for pre in PRE_TOKENIZERS
        }
        cases = [
            {
                "text": text,
                "pre": pre,
                "special": ids(model, text, True),
                "plain": ids(model, text, False),
                "bos": ids(model, text, True, bos=True),
            }
            for pre, model in models.items()
            for text in PRE_TEXTS
        ]
        write("tokenizer_synthetic_cases.json", {"metadata": synthetic, "cases": cases})


if __name__ == "__main__":
    main(sys.argv[1])
