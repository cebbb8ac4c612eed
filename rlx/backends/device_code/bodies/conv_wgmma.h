// What conv_mma.h computes, by instructions of warpgroups (WARPGROUPS): see there, and conv_tiles.h.
#include "conv_mma.h"
