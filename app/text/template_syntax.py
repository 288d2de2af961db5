"""What a chat template may be written with, and how it is rewritten so that all growth is charged.

A list of what is known to be bounded; everything else is refused. Must not know how it is charged:
the rewritten template calls ``app.text.template_sandbox``.
"""

from typing import Any

from jinja2 import TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

CONCATENATE = "headwater_concatenate"
WEIGH = "headwater_weigh"
"""Filters that the rewritten template calls."""

_ALLOWED_NODES = (
    # Statements
    *(nodes.Output, nodes.For, nodes.If, nodes.Macro, nodes.CallBlock, nodes.FilterBlock),
    *(nodes.With, nodes.Assign, nodes.AssignBlock, nodes.Break, nodes.Continue, nodes.Scope),
    # Expressions
    *(nodes.BinExpr, nodes.UnaryExpr, nodes.Call, nodes.Compare, nodes.Concat, nodes.CondExpr),
    *(nodes.Const, nodes.Filter, nodes.Getattr, nodes.Getitem, nodes.List, nodes.Tuple),
    *(nodes.Dict, nodes.Name, nodes.NSRef, nodes.Slice, nodes.Test, nodes.TemplateData),
    # Parts of them
    *(nodes.Keyword, nodes.Operand, nodes.Pair),
)


class GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's words for training; here it only shows them."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def rewritten(template: nodes.Template) -> nodes.Template:
    """Raises ``TemplateSyntaxError`` for what is not allowed."""
    for node in template.find_all(nodes.Node):
        if not isinstance(node, _ALLOWED_NODES):
            kind = type(node).__name__.lower()
            raise TemplateSyntaxError(f"{kind!r} is not supported in chat templates", node.lineno)
    charged: nodes.Template = _Charging().visit(template)
    return charged


class _Charging(NodeTransformer):
    """Everything that is written becomes an expression, which the sandbox's ``finalize`` charges;
    a loop's turn and a macro's call begin by writing nothing, which looks at the clock.
    """

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        super().generic_visit(node, *args, **kwargs)
        return _charged(node)


def _charged(node: nodes.Node) -> nodes.Node:
    if isinstance(node, nodes.Output):
        node.nodes = [_as_expression(child) for child in node.nodes]
    if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock):
        node.body.insert(0, nodes.Output([nodes.Const("", lineno=node.lineno)], lineno=node.lineno))
    if isinstance(node, nodes.For) and node.test is not None:
        timed = _filtered(nodes.Const(True, lineno=node.lineno), WEIGH)
        node.test = nodes.And(timed, node.test, lineno=node.lineno)
    if isinstance(node, nodes.Concat):
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), CONCATENATE)
    is_made = not isinstance(node, nodes.Tuple) or node.ctx == "load"
    if isinstance(node, nodes.List | nodes.Dict | nodes.Tuple) and is_made:
        return _filtered(node, WEIGH)
    return node


def _as_expression(node: nodes.Expr) -> nodes.Expr:
    return (
        nodes.Const(node.data, lineno=node.lineno) if isinstance(node, nodes.TemplateData) else node
    )


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
