// C = act(op(A) op(B) + bias) for halves by matrix instructions, by four warps. See halves_tile.h for the constants.
#include "halves_tile.h"
