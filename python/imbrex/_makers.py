"""Groups' makers of plans: a method for each operator, by what the library says of it."""
import collections.abc
import inspect
from typing import Any, Mapping, Optional

from ._library import CHOICES, DTYPES, OPS, WIRES, Field, choice, text
from ._operands import dtype_name
from ._plan import Plan
from ._types import DType

_TYPES = {"int64": int, "int": int, "float": float, "dtype": DType, "cache": DType, "layout": str,
          "scaling": str, "experts": str, "string": Optional[str]}
_DEFAULTS = {"dtype": "bf16", "cache": None, "layout": "nk", "scaling": "unscaled",
             "experts": "tensor", "string": None}


def _is_other(field):
    """Whether it is a type beside the desc's dtype, which it is where it is not given."""
    return field.type == "dtype" and field.name != "dtype"


def _default(field):
    return None if _is_other(field) else _DEFAULTS.get(field.type, 0)


def signature_of(op):
    """A struct in the desc is one parameter, a dict."""
    parameters = {}
    for field in op.desc:
        struct, dot, _ = field.name.partition(".")
        default = {} if dot else inspect.Parameter.empty if field.flags & Field.REQUIRED \
            else _default(field)
        parameters[struct] = inspect.Parameter(
            struct, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default,
            annotation=Mapping[str, Any] if dot else _TYPES[field.type])
    return inspect.Signature(list(parameters.values()))


def _fields(op, given):
    """Its fields by their whole names, "norm.eps", of what the maker was given."""
    flat = {}
    for field in op.desc:
        struct, dot, name = field.name.partition(".")
        if not dot:
            flat[field.name] = given[field.name]
            continue
        values = given[struct]
        if not isinstance(values, collections.abc.Mapping):
            raise TypeError("%s is %r: want a dict of its fields" % (struct, values))
        flat[field.name] = values.get(name, _default(field))
    for struct, values in given.items():
        for name in values if struct not in flat else ():
            if "%s.%s" % (struct, name) not in flat:
                raise TypeError("%s has no %r: it has %s" % (struct, name, ", ".join(
                    whole.partition(".")[2] for whole in flat if whole.startswith(struct + "."))))
    return flat


def desc_of(op, values, fields):
    """The operator's desc, with the names of its dtype and its layout."""
    try:
        given = op.signature.bind(*values, **fields)
    except TypeError as error:
        raise TypeError("Group.%s() %s" % (op.name, error)) from None
    given.apply_defaults()
    given, names = _fields(op, given.arguments), {"dtype": "bf16", "layout": "nk"}
    for field in op.desc:
        value = given[field.name]
        if _is_other(field):
            given[field.name] = 0 if value is None else \
                WIRES[dtype_name(value, field.name, WIRES)]
        elif field.type == "dtype":
            names["dtype"] = dtype_name(value)
            given[field.name] = DTYPES[names["dtype"]]
        elif field.type == "cache":  # None: as dtype
            given[field.name] = 0 if value is None else 4 if value == "e4m3" else \
                DTYPES[dtype_name(value)]
        elif field.type in CHOICES:
            given[field.name] = choice(field.name, value, CHOICES[field.type])
            names[field.name] = value
        elif field.type == "string":
            given[field.name] = text(field.name, value)
    return op.Desc(**given), names["dtype"], names["layout"]


def _elements(op, field):
    """What an operand's elements are, in words."""
    names = {field.name for field in op.desc}
    out = "out" if "out" in names else "dtype"
    words = {"matrix": "dtype", "weights": "dtype", "out": out,
             "result": "cache" if "cache" in names else out + " or e4m3"}
    return words.get(field.type, field.type)


def _lines(rows):
    """Columns of words, of which the last is free."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "".join("    %s\n" % "  ".join(word.ljust(width) for word, width in zip(row, widths)
                                         ).rstrip() for row in rows)


def _dict_words(fields):
    """How those are given that are no parameters of their own."""
    structs = sorted({field.name.partition(".")[0] for field in fields if "." in field.name})
    return "".join(", those of %s as items of a dict" % struct for struct in structs)


def _words(op):
    """What help() says of the maker."""
    sizes = [(field.name, field.type, field.text) for field in op.desc]
    operands = [(field.name, field.shape or "", _elements(op, field),
                 "written" if field.flags & Field.OUTPUT else "read",
                 "or None" if field.flags & Field.OPTIONAL else "",
                 "of this run; None: the plan's" if field.flags & Field.RUN else field.text)
                for field in op.args if field.type != "struct"]
    return """A Plan of %s.  Collective.

Sizes and choices%s:
%s
Its run() takes, on each rank%s:
%s
Raises ValueError or TypeError for what is wrong here, and the library's imbrex.Error.""" % (
        op.text, _dict_words(op.desc), _lines(sizes), _dict_words(op.args), _lines(operands))


def _maker(op):
    """The method of Group that makes plans of the operator."""
    op.signature = signature_of(op)

    def make(self, *values, **fields):
        with self._refusing("imbrex_plan_create"):
            desc = desc_of(op, values, fields)
        return Plan(self, op, *desc)

    make.__name__, make.__qualname__ = op.name, "Group." + op.name
    make.__doc__ = _words(op)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    make.__signature__ = op.signature.replace(
        parameters=[own, *op.signature.parameters.values()], return_annotation=Plan)
    return make


class Makers:
    """What a Group has of it.  _makers.pyi has the methods for those who check types."""

    def _refusing(self, call):
        raise NotImplementedError


for _op in OPS.values():
    setattr(Makers, _op.name, _maker(_op))
