"""What may run a tower."""

from __future__ import annotations

from typing import Literal, get_args

Engine = Literal["openvino", "onnxruntime"]
EngineChoice = Literal["auto", "tensorflow", "openvino", "onnxruntime"]
Use = Literal["query", "document"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
ENGINE_CHOICES: tuple[EngineChoice, ...] = get_args(EngineChoice)
