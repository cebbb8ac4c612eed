// The same, by eight warps.
#include "halves_tile.h"
