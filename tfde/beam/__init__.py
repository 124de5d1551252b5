"""Apache Beam transforms for corpora that outgrow one machine.

They spread the work of the single-process commands over key ranges and call the same functions,
so they give the same files.
"""

from tfde.environment import require_extra

require_extra("beam", "a Beam pipeline")
