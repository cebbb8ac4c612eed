"""Pytrees: which classes are containers of arrays, for jit, grad and every function that takes nested arrays.

Tuples, lists, dicts, named tuples and dataclasses are: of a dataclass the fields are its children, those with
`dataclasses.field(metadata={"static": True})` built in. A frozen dataclass without arrays is a value, as a string is.
Other classes are made known here, under the names that `jax.tree_util` has.

>>> rlx.tree.register_pytree_node(Layer, lambda x: ((x.w, x.b), x.name), lambda name, items: Layer(*items, name))
"""

from rlx.ops.pytree import register_dataclass as register_dataclass
from rlx.ops.pytree import register_node as register_pytree_node
from rlx.ops.pytree import register_node_class as register_pytree_node_class
from rlx.ops.pytree import register_static as register_static
from rlx.ops.pytree import register_with_keys as register_pytree_with_keys

__all__ = [
    "register_dataclass", "register_pytree_node", "register_pytree_node_class", "register_pytree_with_keys",
    "register_static",
]  # fmt: skip
