// attention_dq.h for rows whose numbers attention_rows.h has left, so that the keys are read once.
#define ROWS_KNOWN
#include "bodies/attention_dq.h"
