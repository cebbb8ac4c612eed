"""The compiled engine: kernels written as LLVM IR, ahead of NumPy's binders. `step` has the registry of its binders."""
