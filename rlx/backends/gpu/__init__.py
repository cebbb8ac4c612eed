"""What CUDA and Vulkan share."""

_RULES = (
    "attention", "conv.forward", "index", "matmul", "movement", "norm.channels", "norm.rows", "pool", "reduce",
    "softmax",
)  # fmt: skip
# What most programs need beside their device. It is imported while the driver is at work on opening it.
PROGRAMS = (
    "rlx.driver.memory.planner",
    "rlx.backends.gpu.program.executable",
    *(f"rlx.backends.gpu.rules.{name}" for name in _RULES),
)
