"""Files of any content: whole or not at all, compressed, locked, in parts, line by line."""
