"""What is to happen around the import of a module, whenever it comes."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import ModuleType


class ImportWatch(importlib.abc.MetaPathFinder):
    """Has a module's code run within a context, once; `sys.meta_path.insert(0, ...)` begins it.

    It waits for the import itself: TensorFlow asks where Keras is before it imports it.

    Args:
        name: The module's.
        around: Gives the context, for the module.
    """

    def __init__(
        self, name: str, around: Callable[[ModuleType], AbstractContextManager[None]]
    ) -> None:
        self.name, self.around = name, around
        self._asks = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds the module by the other finders; its loader runs it within the context."""
        if fullname != self.name or self._asks:
            return None
        self._asks = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asks = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_within(module: ModuleType) -> None:
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                with self.around(module):
                    execute(module)

            spec.loader.exec_module = execute_within  # type: ignore[method-assign]
        return spec
