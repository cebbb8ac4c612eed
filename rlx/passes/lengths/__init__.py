"""Programs for lengths that vary: one padded program for each bucket of lengths."""

from rlx.passes.lengths import rules as rules
from rlx.passes.lengths.axes import Refused as Refused
from rlx.passes.lengths.padding import Fit as Fit
from rlx.passes.lengths.padding import Padded as Padded
from rlx.passes.lengths.padding import Unlike as Unlike
from rlx.passes.lengths.padding import padded as padded
