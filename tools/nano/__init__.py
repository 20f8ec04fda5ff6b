"""The code that made the bundled model: corpus, tokenizer, training, evaluation."""
