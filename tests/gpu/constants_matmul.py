"""The constants with which tests compile the kernels of matrix products."""

CONSTANTS: dict[str, tuple[tuple[int, ...], ...]] = {
    "matmul": ((0, 1, 2, 1, 1, 1, 1, 0, 0), (1, 0, 0, 0, 0, 0, 0, 1, 1)),
    "matmul_rows": ((0, 2, 1, 1, 1, 16, 1), (1, 0, 0, 0, 0, 8, 4), (1, 1, 1, 1, 1, 32, 1)),
    "matmul_mma": ((0, 1, 2, 1, 1, 1, 1, 0, 0, 16, 2, 1, 1),),
    "matmul_grouped": ((0, 1, 0, 0, 1, 1, 1, 0, 0, 0), (1, 0, 0, 0, 0, 0, 0, 1, 0, 1)),
    "matmul_grouped64": ((0, 1), (1, 0)),
    "matmul_grouped_mma": ((1, 0, 0, 0, 1, 1, 1, 0, 0, 16, 2, 1, 1, 1),),
}
