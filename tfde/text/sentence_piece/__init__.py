"""SentencePiece, unigram and BPE, as T5 and XLM-RoBERTa have it."""
