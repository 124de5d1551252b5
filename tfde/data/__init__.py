"""Readers and writers of data sets, and the batches that training reads."""
