// What conv_tf32_mma.h computes, by instructions of warpgroups (WARPGROUPS): see conv_mma.h and conv_tiles.h.
#include "conv_tf32_mma.h"
