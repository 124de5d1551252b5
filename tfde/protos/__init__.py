"""Configuration messages of TensorFlow Serving that tensorflow-serving-api does not ship.

The `.proto` files hold its names and numbers; `setup.py` generates the modules at build time.
"""
