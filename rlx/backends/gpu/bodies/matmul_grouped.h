// Products by groups of rows with fused multiply-adds. See grouped.h, and matmul_tile.h for C0 to C8; C9: BY_SUM.
#include "matmul_tile.h"
#define BY_SUM (UINT(C9) == 1u)
#include "grouped.h"
