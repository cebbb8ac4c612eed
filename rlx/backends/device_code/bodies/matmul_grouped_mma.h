// Products by groups of rows with matrix instructions. See grouped.h, and mma_tile.h for A_TRANSPOSED to TERMS_B; and
// BY_SUM.
#include "mma_tile.h"
#include "grouped.h"
