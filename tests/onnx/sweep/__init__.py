"""ONNX files as other tools write them, made on the spot: small networks of random weights from exporters, quantizers,
optimizers and converters. `python -m tests.onnx.sweep --help` says what is done with them."""
