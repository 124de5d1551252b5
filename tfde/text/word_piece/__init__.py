"""WordPiece, as BERT has it."""
