// C = act(op(A) op(B) + bias) by fused multiply-adds, in f32. See matmul_tile.h for the constants.
#include "matmul_tile.h"
#include "matmul_batch.h"
