// attention.h, which also stores the binary logarithm of each row's sum of exp(score).
#define SUM_ROWS
#include "bodies/attention.h"
