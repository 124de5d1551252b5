"""What else than TensorFlow can run a tower on CPUs: OpenVINO, ONNX Runtime."""
