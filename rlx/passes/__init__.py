"""Passes: functions from graph to graph. `optimize` runs those that a device needs, in order."""

from typing import TYPE_CHECKING

from rlx.lazy import by_need as _by_need

if TYPE_CHECKING:
    from rlx.passes.bodies import body_programs as body_programs
    from rlx.passes.bodies import change_bodies as change_bodies
    from rlx.passes.fuse import fuse_epilogues as fuse_epilogues
    from rlx.passes.fuse import fuse_groups as fuse_groups
    from rlx.passes.fuse_heads import fuse_heads as fuse_heads
    from rlx.passes.fuse_norm import fuse_norms as fuse_norms
    from rlx.passes.fuse_normed import fuse_normed as fuse_normed
    from rlx.passes.hoist import hoist as hoist
    from rlx.passes.integers import use_integers as use_integers
    from rlx.passes.isolate import isolate_results as isolate_results
    from rlx.passes.legalize import PassReport as PassReport
    from rlx.passes.legalize import legalize as legalize
    from rlx.passes.params import set_param_dtypes as set_param_dtypes
    from rlx.passes.params import sink_casts as sink_casts
    from rlx.passes.pipeline import optimize as optimize
    from rlx.passes.recognize import recognize as recognize
    from rlx.passes.renew_last import renew_last as renew_last
    from rlx.passes.rewriting import SupportOf as SupportOf
    from rlx.passes.rewriting import native_everywhere as native_everywhere
    from rlx.passes.rewriting import remove_dead as remove_dead
    from rlx.passes.simplify import simplified as simplified
    from rlx.passes.simplify import simplify as simplify
    from rlx.passes.simplify import without_rules as without_rules
    from rlx.passes.widen import widen as widen

_NAMES = {
    "bodies": "body_programs change_bodies",
    "fuse": "fuse_epilogues fuse_groups",
    "fuse_heads": "fuse_heads",
    "fuse_norm": "fuse_norms",
    "fuse_normed": "fuse_normed",
    "hoist": "hoist",
    "integers": "use_integers",
    "isolate": "isolate_results",
    "legalize": "PassReport legalize",
    "params": "set_param_dtypes sink_casts",
    "pipeline": "optimize",
    "recognize": "recognize",
    "renew_last": "renew_last",
    "rewriting": "SupportOf native_everywhere remove_dead",
    "simplify": "simplified simplify without_rules",
    "widen": "widen",
}
_by_need(__name__, {name: f"rlx.passes.{module}" for module, names in _NAMES.items() for name in names.split()})
