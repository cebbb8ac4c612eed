// C = act(op(A) op(B) + bias) by matrix instructions. See mma_tile.h for the constants.
#include "mma_tile.h"
#include "matmul_batch.h"
