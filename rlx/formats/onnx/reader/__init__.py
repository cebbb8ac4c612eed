"""From an ONNX file to an rlx graph: what is checked, in which order, and what every operator is built with."""
