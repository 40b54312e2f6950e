"""Text in, text out: tokenizer, chat template, incremental detokenizer."""
