// Products by groups of rows with fused multiply-adds. See grouped.h, and matmul_tile.h for A_TRANSPOSED to WIDE; and
// BY_SUM.
#include "matmul_tile.h"
#include "grouped.h"
