"""Run chat templates, which are untrusted Jinja programs that come with models.

Jinja's sandbox prevents templates from accessing Python internals, but it does not limit
their time or memory. So this environment counts steps. Each loop iteration, call, filter,
operator and look-up is a step, and creating or reading a string or list costs steps in
proportion to its length. A template fails if it takes more steps than are reasonable for
the size of the conversation.

Strings that do not come from the template are `MarkedText`. Wherever Jinja would convert
them to plain strings (output, `~`, slices, methods, filters and formatting), this
environment calls a function that preserves the marks. Numbers do not have marks, so their
digits count as text written by the template.
"""

import datetime
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from types import GeneratorType
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.filters import ignore_case, make_attrgetter
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Namespace

from . import marked_text
from .chat_template import LONGEST_TEMPLATE
from .template_budget import CONTAINERS, VIEWS, Budget, TemplateBoundError, check_keys
from .template_code import TemplateCode, TemplateExtension, count_steps

_STEPS_PER_CALL = 4
_STEPS_PER_WRITTEN = 16  # per value, or per 64 characters, in a written list or dict
_STEPS_PER_PIECE = 4  # per piece when a string is split
_WIDTH_PER_STEP = 16
# Python searches from the right by comparing at every position.
_COMPARISONS_PER_STEP = 1024

_MOST_NUMBER = 10_000  # maximum width, repetition count or number of digits
_MOST_RANGE = 100_000
# Maximum number of bits in an integer. From 61 bits on, integer hashes are not unique.
_MOST_BITS = 64
_LONGEST_DATE_FORMAT = 200
_LONGEST_SEPARATOR = 16

# Keyword arguments that Jinja's generated code adds to each call.
_SCOPES = ("_loop_vars", "_block_vars")

_METHODS_OF_TEXT = frozenset(
    (
        *marked_text.METHODS,
        *[
            "count",
            "endswith",
            "find",
            "format",
            "format_map",
            "index",
            "rfind",
            "rindex",
            "startswith",
            "zfill",
        ],
        *[
            "isalnum",
            "isalpha",
            "isascii",
            "isdecimal",
            "isdigit",
            "isidentifier",
            "islower",
            "isnumeric",
        ],
        *["isprintable", "isspace", "istitle", "isupper"],
    )
)
_SEARCHING = frozenset(["count", "find", "index", "partition", "replace", "split"])
_SEARCHING_BACKWARDS = frozenset(["rfind", "rindex", "rpartition", "rsplit"])
_PADDING = frozenset(["center", "ljust", "rjust", "zfill"])
# The attributes that templates can access, by type. Namespaces are not listed, because
# their attributes are set by the template.
_ATTRIBUTES: dict[type, frozenset[str]] = {
    str: _METHODS_OF_TEXT,
    list: frozenset(["copy", "count", "index"]),
    tuple: frozenset(["count", "index", "grouper", "list"]),  # the last two for `groupby`
    dict: frozenset(["copy", "get", "items", "keys", "values"]),
    LoopContext: frozenset(
        [
            "changed",
            "cycle",
            "depth",
            "depth0",
            "first",
            "index",
            "index0",
            "last",
            "length",
            "nextitem",
            "previtem",
            "revindex",
            "revindex0",
        ]
    ),
    Cycler: frozenset(["current", "next", "reset"]),
    Macro: frozenset(["arguments", "caller", "catch_kwargs", "catch_varargs", "name"]),
    BlockReference: frozenset(["super"]),
}
_DICT_ATTRIBUTES = frozenset(dir(dict))
# The types that templates can write, in addition to strings, lists and dicts.
_WRITABLE = (type(None), bool, int, float, Undefined, range, Macro, LoopContext)

# The Jinja filters that templates can use. The other filters are for HTML, or take time
# that does not depend on the size of their arguments.
_FILTERS = (
    "abs attr batch capitalize center count d default dictsort float groupby int items "
    "length list lower map max min reject rejectattr round select selectattr slice sort "
    "title truncate upper wordcount"
)
# Filters and tests that read values completely.
_READING = frozenset(
    [
        "dictsort",
        "groupby",
        "max",
        "min",
        "sort",
        "unique",
        "wordcount",
        "eq",
        "equalto",
        "==",
        "ne",
        "!=",
        "lt",
        "lessthan",
        "<",
        "le",
        "<=",
        "gt",
        "greaterthan",
        ">",
        "ge",
        ">=",
        "in",
        "lower",
        "upper",
    ]
)
# Filters with a width or count argument that determines the size of the result.
_WIDE = frozenset(["batch", "center", "indent", "round", "slice", "truncate"])
# Filters that create a value for each character or word of a string.
_WALKING = frozenset(
    [
        "batch",
        "groupby",
        "last",
        "list",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "select",
        "selectattr",
        "slice",
        "sort",
        "title",
        "unique",
        "wordcount",
    ]
)
# Filters that create a new string.
_WRITING = frozenset(["capitalize", "center", "lower", "title", "truncate", "upper"])


class _TemplateNamespace(Namespace):
    """A namespace that rejects names with a leading underscore."""

    def __init__(*args: Any, **named: Any) -> None:
        self, *values = args
        attributes = dict(*values, **named)
        Namespace.__init__(self)
        for name, value in attributes.items():
            self[name] = value

    def __repr__(self) -> str:
        raise SecurityError("a namespace cannot be written")

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str) or name.startswith("_"):
            raise SecurityError(f"a namespace must not have the name {name!r}")
        Namespace.__setitem__(self, str.__str__(name), value)


@cache
def _attributes_of(kind: type) -> frozenset[str]:
    """Return the attributes that templates can access on values of this type."""
    for base, attributes in _ATTRIBUTES.items():
        if issubclass(kind, base):
            return attributes
    return frozenset()


def _limit_widths(*arguments: object) -> int:
    """Return the largest width or count; raise TemplateBoundError above the limit."""
    largest = 0
    for argument in arguments:
        if isinstance(argument, int):
            largest = max(largest, abs(argument))
    if largest > _MOST_NUMBER:
        raise TemplateBoundError(f"a width or a count must be at most {_MOST_NUMBER}")
    return largest


def _limit_number(number: int) -> None:
    """Raise TemplateBoundError if an integer has too many bits."""
    if number.bit_length() > _MOST_BITS:
        raise TemplateBoundError(f"a number must have at most {_MOST_BITS} bits")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """A Jinja environment that counts steps and preserves the marks on strings.

    Each thread can run one template at a time.
    """

    code_generator_class = TemplateCode
    intercepted_binops = frozenset(["+", "-", "*", "**", "%", "//"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[TemplateExtension, jinja2.ext.loopcontrols],
            optimized=False,
            cache_size=0,
        )
        # The budget is thread-local, because a lock would be unsafe. An interrupt between
        # its acquisition and the `with` block would leave it locked forever.
        self._of_thread = threading.local()
        filters = {name: self.filters[name] for name in _FILTERS.split()}
        filters |= {"join": self._join, "replace": self._replace, "trim": self._trim}
        filters |= {
            "string": self.text_of,
            "format": self._format,
            "tojson": self._to_json,
        }
        filters |= {"safe": lambda text: text, "first": self._first, "last": self._last}
        filters |= {"reverse": self._reverse, "sum": self._sum, "indent": self._indent}
        filters |= {"unique": self._unique}
        self.filters = {
            name: self._count_calls(name, function) for name, function in filters.items()
        }
        self.tests = {
            name: self._count_calls(name, test) for name, test in self.tests.items()
        }
        self.globals = {
            "range": self._range,
            "dict": dict,
            "namespace": _TemplateNamespace,
            "cycler": self.globals["cycler"],
            "joiner": self.globals["joiner"],
            "raise_exception": self._raise_exception,
            "strftime_now": self._strftime_now,
        }
        # Jinja's generated code contains `concat = environment.concat`.
        self.concat = self._concat  # type: ignore[method-assign]

    def compile_template(self, text: str) -> jinja2.Template:
        """Compile a template.

        Raises:
            TemplateBoundError: If the template is too long or has too many tokens.
            Exception: If the template is invalid, for which Jinja and Python raise many
                different exceptions.
        """
        if len(text) > LONGEST_TEMPLATE:
            raise TemplateBoundError(
                f"it must have at most {LONGEST_TEMPLATE} characters"
            )
        return self.from_string(text)

    def run(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        """Render a template. The caller must have marked the variables."""
        self._of_thread.budget = Budget(variables)
        return template.render(**variables)

    @property
    def _budget(self) -> Budget:
        """The step budget of the template that runs in this thread."""
        budget: Budget = self._of_thread.budget
        return budget

    def _parse(
        self, source: str, name: str | None, filename: str | None
    ) -> nodes.Template:
        """Parse a template, and add step counting to its loops, macros and blocks."""
        tree = super()._parse(source, name, filename)
        count_steps(tree)
        return tree

    # ---- methods that are called by the generated code --------------------------------

    def spend(self, steps: int) -> bool:
        """Deduct the steps for running a part of a template, and return True."""
        self._budget.take(steps)
        return True

    def passes(self, values: Any, steps: int) -> Any:
        """Return values to iterate over, and pay for each loop iteration."""
        if isinstance(values, str | list | tuple | dict):
            self._budget.take(steps * len(values))
            return values
        if isinstance(values, Undefined):
            return values
        return self._passes_one_by_one(values, steps)

    def _passes_one_by_one(self, values: Iterable[Any], steps: int) -> Iterator[Any]:
        for value in values:
            self._budget.take(steps)
            yield value

    def _concat(self, pieces: Iterable[str]) -> str:
        """Join the pieces of the output, and pay for them."""
        texts = []
        for text in pieces:
            self._budget.take_to_make(len(text))
            texts.append(text)
        return marked_text.join(texts)

    def text_of(self, value: Any) -> str:
        """Convert a value to a string, as templates write it."""
        if isinstance(value, str):
            return value
        if isinstance(value, CONTAINERS):
            weight, _depth = self._budget.measure(value)
            self._budget.take(_STEPS_PER_WRITTEN * weight)
            return marked_text.as_outside(repr(value), value)
        if isinstance(value, VIEWS):
            elements = self.text_of(list(value))
            return marked_text.join([f"{type(value).__name__}(", elements, ")"])
        if not isinstance(value, _WRITABLE):
            kind = "namespace" if isinstance(value, Namespace) else type(value).__name__
            raise SecurityError(f"a {kind} cannot be written")
        return str(value)

    def _field_text(self, value: Any) -> str:
        """Convert the value of a format field to a string, and pay for it."""
        text = self.text_of(value)
        self._budget.take_to_make(len(text))
        return text

    def sliced(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """Return the slice `value[start:stop:step]`, and pay for it."""
        return self._pay_for_result(value[start:stop:step])

    def new_container(self, value: Any) -> Any:
        """Deduct the steps for a new list, tuple or dict, and return it."""
        return self._pay_for_result(value)

    def operand(self, value: Any) -> Any:
        """Deduct the steps for reading a comparison operand, and return it."""
        self._budget.take_to_read(value)
        return value

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look up `obj.attribute`, which may be an attribute or an element."""
        self._budget.take(1)
        if isinstance(obj, dict) and attribute not in _DICT_ATTRIBUTES:
            return (
                obj[attribute]
                if attribute in obj
                else self.undefined(obj=obj, name=attribute)
            )
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look up `obj[argument]`, which may be an element or an attribute."""
        self._budget.take(1)
        if isinstance(argument, tuple):
            self._budget.take_to_read(argument)  # to compute its hash
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, _value: Any) -> bool:
        """Return whether templates can access an attribute of an object."""
        if isinstance(obj, Namespace):
            return not attr.startswith("_")
        if obj is dict:
            return attr == "fromkeys"
        kind: type = type(obj)
        return attr in _attributes_of(kind)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `+`, `-`, `*`, `**`, `//` or `%`, and pay for the result."""
        if operator == "%" and isinstance(left, str):
            return self._pay_for_result(self._format_percent(left, right))
        if operator == "-" and isinstance(left, VIEWS):
            raise SecurityError("a set is not available")
        if operator in ("*", "**"):
            self._check_product(operator, left, right)
        return self._pay_for_result(super().call_binop(context, operator, left, right))

    def _check_product(self, operator: str, left: Any, right: Any) -> None:
        """Raise TemplateBoundError if a product or a power would be too large."""
        is_power = operator == "**" and isinstance(left, int) and isinstance(right, int)
        if is_power and left.bit_length() * abs(right) > _MOST_BITS:
            raise TemplateBoundError(f"a number must have at most {_MOST_BITS} bits")
        for value, count in ((left, right), (right, left)):
            if isinstance(count, int) and count > 0:
                if isinstance(value, str):
                    self._budget.take_to_make(len(value) * count)
                elif isinstance(value, list | tuple):
                    self._budget.take(len(value) * count // _WIDTH_PER_STEP)

    def call(self, context: Context, function: Any, *arguments: Any, **named: Any) -> Any:
        """Call a function, a macro or a method, and pay for it."""
        self._budget.take(_STEPS_PER_CALL + len(arguments) + len(named))
        if isinstance(function, Macro):
            return super().call(context, function, *arguments, **named)
        owner = getattr(function, "__self__", None)
        name = getattr(function, "__name__", "")
        if isinstance(owner, str):
            options = {key: value for key, value in named.items() if key not in _SCOPES}
            return self._pay_for_result(
                self._call_method_of_text(owner, name, arguments, options)
            )
        if isinstance(owner, LoopContext | list | tuple | dict):
            self._pay_for_method(owner, name, arguments)
        elif owner is dict or function in (dict, _TemplateNamespace):
            values = (
                self._with_checked_keys(argument, name) for argument in arguments[:1]
            )
            arguments = (*values, *arguments[1:])
        return self._pay_for_result(super().call(context, function, *arguments, **named))

    def _pay_for_method(self, owner: Any, name: str, arguments: tuple[Any, ...]) -> None:
        """Deduct the steps for a method that may read a whole list, dict or loop."""
        if name in ("changed", "count", "index"):
            for value in arguments:
                self._budget.take_to_read(value)
        if name in ("count", "index"):
            self._budget.take_to_read(owner)
        if name == "get":
            for key in arguments[:1]:
                check_keys([key])
        if name in ("copy", "items", "keys", "values"):
            self._budget.take_to_pass(owner)

    def _with_checked_keys(self, values: Any, name: str) -> Any:
        """Return the values for a new dict, after checking the keys.

        The keys are checked before Python hashes them.
        """
        if isinstance(values, dict | Undefined) or not isinstance(values, Iterable):
            self._budget.take_to_pass(values)
            return values
        elements = list(self.passes(values, 1))
        if name == "fromkeys":
            check_keys(elements)
        else:
            pairs = [element for element in elements if isinstance(element, list | tuple)]
            check_keys(pair[0] for pair in pairs if pair)
        return elements

    def _call_method_of_text(
        self, text: str, name: str, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Call a string method, preserving the marks."""
        if name == "join" and len(arguments) == 1:
            arguments = ([*self.passes(arguments[0], _STEPS_PER_PIECE)],)
        if name in _PADDING:
            _limit_widths(*arguments, *options.values())
        for value in (text, *arguments, *options.values()):
            self._budget.take_to_pass(value)
        self._pay_for_search(name, text, arguments)
        self._pay_for_growth(name, text, arguments, options)
        if name in marked_text.METHODS:
            return marked_text.METHODS[name](text, *arguments, **options)
        result = getattr(str, name)(text, *arguments, **options)
        if isinstance(result, str):
            result = marked_text.as_outside(result, text, *arguments)
        return result

    def _pay_for_search(self, name: str, text: str, arguments: tuple[Any, ...]) -> None:
        """Deduct the steps for the comparisons of a string method that searches."""
        if name in _SEARCHING:
            self._budget.take_to_read(text)
        if name in _SEARCHING_BACKWARDS:
            part = arguments[0] if arguments and isinstance(arguments[0], str) else ""
            self._budget.take_to_read(text)
            self._budget.take(len(text) * len(part) // _COMPARISONS_PER_STEP)

    def _pay_for_growth(
        self, name: str, text: str, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        """Deduct the steps for the result of `replace`, `join` or a split method."""
        if name == "replace" and len(arguments) > 1:
            old, new = arguments[:2]
            if isinstance(old, str) and isinstance(new, str):
                places = str.count(text, old)
                self._budget.take(_STEPS_PER_PIECE * places)
                self._budget.take_to_make(places * len(new))
        if name == "join" and arguments:
            texts = [element for element in arguments[0] if isinstance(element, str)]
            self._budget.take_to_make(sum(map(len, texts)) + len(texts) * len(text))
        if name in ("split", "rsplit", "splitlines"):
            separator = arguments[0] if arguments else options.get("sep")
            pieces = len(text) // 2
            if isinstance(separator, str) and separator != "":
                pieces = str.count(text, separator)
            self._budget.take(_STEPS_PER_PIECE * pieces)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a string's `format` or `format_map` method, with marks, or None."""
        owner = getattr(value, "__self__", None)
        name = getattr(value, "__name__", "")
        if not isinstance(owner, str) or name not in ("format", "format_map"):
            return None

        def format_text(*arguments: Any, **named: Any) -> str:
            values = arguments[0] if name == "format_map" else named
            self._budget.take_to_read(owner)
            return marked_text.format_braces(owner, arguments, values, self._field_text)

        return format_text

    # ---- filters and global functions -------------------------------------------------

    def _count_calls(self, name: str, function: Any) -> Any:
        """Wrap a filter or a test, so that steps are counted and marks are preserved.

        The wrapper receives the context, so that Jinja never calls it at compile time.
        """
        leading_name = getattr(getattr(function, "jinja_pass_arg", None), "name", None)
        reads = name in _READING
        walks = name in _WALKING
        writes = name in _WRITING or name == "wordcount"
        is_wide = name in _WIDE

        @pass_context
        def counted(context: Context, *arguments: Any, **named: Any) -> Any:
            budget = self._budget
            budget.take(2)
            if is_wide:
                width = _limit_widths(*arguments[1:], *named.values())
                budget.take(width // _WIDTH_PER_STEP)
            if writes and arguments:
                arguments = (self.text_of(arguments[0]), *arguments[1:])
            for argument in (*arguments, *named.values()):
                if reads:
                    budget.take_to_read(argument)
                else:
                    budget.take_to_pass(argument)
                if walks and isinstance(argument, str):
                    budget.take(_STEPS_PER_PIECE * len(argument))
            context_arguments = {
                "context": context,
                "eval_context": context.eval_ctx,
                "environment": self,
            }
            leading = context_arguments.get(leading_name or "")
            values = arguments if leading is None else (leading, *arguments)
            result = function(*values, **named)
            if isinstance(result, GeneratorType):
                return self._passes_one_by_one(result, 1)
            if writes and isinstance(result, str):
                result = marked_text.as_outside(result, arguments, named)
            return self._pay_for_result(result)

        return counted

    def _pay_for_result(self, result: Any) -> Any:
        """Deduct the steps for a new string, list or dict, and return it."""
        if isinstance(result, str):
            self._budget.take_to_make(len(result))
        elif isinstance(result, CONTAINERS):
            self._budget.measure(result)
        elif isinstance(result, int):
            _limit_number(result)
        return result

    def _join(self, values: Iterable[Any], d: str = "", attribute: Any = None) -> str:
        texts = []
        separator = self.text_of(d)
        element_of = make_attrgetter(self, attribute)
        for value in values:
            text = self.text_of(element_of(value))
            self._budget.take_to_make(len(text) + len(separator))
            texts.append(text)
        return marked_text.join(texts, separator)

    def _replace(self, value: Any, old: Any, new: Any, count: int | None = None) -> str:
        text = self.text_of(value)
        parts = (self.text_of(old), self.text_of(new))
        self._pay_for_search("replace", text, parts)
        self._pay_for_growth("replace", text, parts, {})
        return marked_text.replace(text, *parts, -1 if count is None else count)

    def _trim(self, value: Any, chars: str | None = None) -> str:
        return marked_text.strip(self.text_of(value), chars)

    def _indent(
        self, value: Any, width: int | str = 4, first: bool = False, blank: bool = False
    ) -> str:
        indentation = width if isinstance(width, str) else " " * width
        text = self.text_of(value)
        self._pay_for_growth("splitlines", text, (), {})
        lines = marked_text.split_lines(text + "\n")
        for number, line in enumerate(lines):
            if (number or first) and (line or blank or (first and not number)):
                self._budget.take_to_make(len(indentation))
                lines[number] = marked_text.join([indentation, line])
        return marked_text.join(lines, "\n")

    def _format(self, value: Any, *arguments: Any, **named: Any) -> str:
        return self._format_percent(self.text_of(value), named or arguments)

    def _format_percent(self, text: str, arguments: object) -> str:
        """Return `text % arguments`, with marks."""
        self._budget.take_to_read(text)
        return marked_text.format_percent(text, arguments, self._field_text)

    def _first(self, values: Any) -> Any:
        return next(iter(values), self.undefined("there is no first element"))

    def _last(self, values: Any) -> Any:
        return next(
            iter(reversed(list(values))), self.undefined("there is no last element")
        )

    def _reverse(self, values: Any) -> Any:
        return values[::-1] if isinstance(values, str) else list(values)[::-1]

    def _sum(self, values: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
        total = start
        element_of = make_attrgetter(self, attribute)
        for value in values:
            self._budget.take(1)
            total = self._pay_for_result(total + element_of(value))
        return total

    def _unique(
        self, values: Iterable[Any], case_sensitive: bool = False, attribute: Any = None
    ) -> Iterator[Any]:
        postprocess = None if case_sensitive else ignore_case
        key_of = make_attrgetter(self, attribute, postprocess)
        seen = set()
        for value in values:
            key = key_of(value)
            check_keys([key])
            if key not in seen:
                seen.add(key)
                yield value

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        """Return a value as JSON, without HTML escapes, as in transformers."""
        weight = 1
        if isinstance(value, str):
            weight += len(value) // _WIDTH_PER_STEP
        if isinstance(value, CONTAINERS):
            weight, depth = self._budget.measure(value)
            if indent is not None:
                width = len(indent) if isinstance(indent, str) else _limit_widths(indent)
                self._budget.take_to_make(weight * depth * width)
        self._budget.take(_STEPS_PER_WRITTEN * weight)
        if separators is not None and any(
            len(text) > _LONGEST_SEPARATOR for text in separators
        ):
            raise TemplateBoundError("a separator in JSON is too long")
        text = json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )
        return marked_text.as_outside(text, value, indent, separators)

    def _range(self, *bounds: int) -> range:
        values = range(*bounds)
        for bound in bounds:
            _limit_number(bound)
        if len(values) > _MOST_RANGE:
            raise TemplateBoundError(f"a range must have at most {_MOST_RANGE} numbers")
        return values

    def _raise_exception(self, message: Any) -> None:
        raise jinja2.TemplateError(str.__str__(self.text_of(message)))

    def _strftime_now(self, form: str) -> str:
        if len(form) > _LONGEST_DATE_FORMAT:
            raise TemplateBoundError("the date format is too long")
        text = datetime.datetime.now().strftime(str.__str__(form))
        return marked_text.as_outside(text, form)
