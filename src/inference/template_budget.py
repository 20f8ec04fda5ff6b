"""Limit the time and memory that a chat template uses, by counting steps.

A step takes about two microseconds and allocates at most a few hundred bytes. A short
conversation is allowed `STEPS` steps, which take half a second and 40 MiB in the worst
case. A longer conversation is allowed more steps, in proportion to its size.
"""

import sys
from collections.abc import ItemsView, Iterable, KeysView, Mapping, ValuesView

from jinja2.exceptions import SecurityError
from jinja2.runtime import Macro, Undefined
from jinja2.utils import Namespace

from .errors import InferenceError

# The number of steps allowed per run, and the number of additional steps for each value
# or 64 characters of the conversation.
STEPS = 100_000
_STEPS_PER_VALUE = 1000

# The amount of work that counts as one step.
_CHARACTERS_MADE = 64
_CHARACTERS_SEARCHED = 16
_ELEMENTS_MADE = 4
_ELEMENTS_PASSED = 16

_DEEPEST = 64  # maximum nesting depth of lists and dicts
_CHARACTERS_OF_A_VALUE = 64

CONTAINERS = (list, tuple, dict)
VIEWS = (KeysView, ValuesView, ItemsView)
# The types allowed as elements of lists and dicts, and as dict keys. Tuples are not
# allowed as keys, because their hashes are not cached and can be made to collide.
_PLAIN = (type(None), bool, int, float, str, Undefined, Macro, Namespace)
_KEYS = (type(None), bool, int, float, str, Undefined)


class TemplateBoundError(InferenceError):
    """Raised when a template exceeds a limit on its steps or on the size of a value."""


class Budget:
    """The number of steps that a template run may still use.

    Args:
        inputs: The template variables.
    """

    def __init__(self, inputs: Mapping[str, object]) -> None:
        # (weight, depth, value) of each list and dict, by `id(value)`. The reference to
        # the value keeps its id valid.
        self._measured: dict[int, tuple[int, int, object]] = {}
        self._left = sys.maxsize
        self._heaviest = sys.maxsize
        weight = sum(self.measure(value)[0] for value in inputs.values())
        self._left = STEPS + _STEPS_PER_VALUE * weight
        self._heaviest = STEPS + 4 * weight

    def take(self, steps: int) -> None:
        """Deduct steps from the budget, or raise TemplateBoundError if it is exceeded."""
        self._left -= steps
        if self._left < 0:
            raise TemplateBoundError("it takes too many steps")

    def take_to_make(self, characters: int) -> None:
        """Deduct the steps for creating a string with this many characters."""
        self.take(1 + characters // _CHARACTERS_MADE)

    def take_to_pass(self, value: object) -> None:
        """Deduct the steps for visiting the direct elements of a value."""
        if isinstance(value, str):
            self.take(1 + len(value) // _CHARACTERS_MADE)
        elif isinstance(value, (*CONTAINERS, *VIEWS, range)):
            self.take(1 + len(value) // _ELEMENTS_PASSED)

    def take_to_read(self, value: object) -> None:
        """Deduct the steps for reading a value completely, as in a comparison."""
        if isinstance(value, str):
            self.take(1 + len(value) // _CHARACTERS_SEARCHED)
        elif isinstance(value, CONTAINERS):
            self.take(self.measure(value)[0])
        elif isinstance(value, VIEWS):
            self.take(self.measure(list(value))[0])
        elif isinstance(value, range):
            self.take(1 + len(value) // _ELEMENTS_PASSED)

    def measure(self, value: object, depth: int = 0) -> tuple[int, int]:
        """Return the weight and the nesting depth of a value.

        This deducts the steps for containers that have not been measured before. The
        weight is the number of values inside, with long strings counted as several
        values. A list that occurs twice counts twice, because it is also written twice.
        """
        if isinstance(value, str):
            return 1 + len(value) // _CHARACTERS_OF_A_VALUE, 0
        if not isinstance(value, CONTAINERS):
            if not isinstance(value, _PLAIN):
                kind = type(value).__name__
                raise SecurityError(f"a list or an object must not contain a {kind}")
            return 1, 0
        if id(value) in self._measured:
            return self._measured[id(value)][:2]
        self.take(1 + len(value) // _ELEMENTS_MADE)
        weight = 1
        deepest = 0
        elements = value
        if isinstance(value, dict):
            check_keys(value)
            elements = [*value, *value.values()]
        if elements and depth >= _DEEPEST:
            raise TemplateBoundError("its lists are too deep")
        for element in elements:
            inner_weight, inner_depth = self.measure(element, depth + 1)
            weight += inner_weight
            deepest = max(deepest, inner_depth + 1)
        if deepest > _DEEPEST:
            raise TemplateBoundError("its lists are too deep")
        if weight > self._heaviest:
            raise TemplateBoundError("its lists are too large")
        self._measured[id(value)] = (weight, deepest, value)
        return weight, deepest


def check_keys(keys: Iterable[object]) -> None:
    """Raise SecurityError for dict keys that are not plain, before Python hashes them."""
    for key in keys:
        if not isinstance(key, _KEYS):
            raise SecurityError(
                f"a key must be a text or a number: got a {type(key).__name__}"
            )
