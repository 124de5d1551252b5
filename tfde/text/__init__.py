"""From strings to token ids, in the graph: tokenizers, their training, packing."""
