"""Each file that is run by its path can be imported: the names that it takes from the package are there, also those
that a function takes."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
