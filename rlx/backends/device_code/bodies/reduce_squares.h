// What reduce.h computes, of squared distances from `centers`: see there.
#define SQUARES
#include "reduce.h"
