// Products by groups of rows with matrix instructions. See grouped.h, and mma_tile.h for C0 to C12; C13: BY_SUM.
#include "mma_tile.h"
#define BY_SUM (UINT(C13) == 1u)
#include "grouped.h"
