"""Byte-level byte-pair encoding, as GPT-2 and RoBERTa have it."""
