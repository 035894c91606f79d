#!/usr/bin/env python3
"""Check that no room of src/zerohop reaches into the private names of another.

A room is a folder, or a file of `core/` itself. An underscore says that a name is not the user's, and that a room keeps
it to itself: `object._name` is allowed for `self` and `cls`, and for other objects if the same room defines `_name`. If
the object is a parameter with an annotation, its class must be of the same room, too. Names that no file of the package
defines belong to other libraries.

Usage: private_names.py [FOLDER]; by default src/zerohop.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent / "src" / "zerohop"
# Methods that the standard library gives to named tuples and enumerations, and modules of this package.
_EVERYBODYS = {"_replace", "_asdict", "_fields", "_make", "_native", "_floors", "_demo_peer", "_peer", "_value_"}


class Access(NamedTuple):
    """Names one place where a private name is used."""

    path: Path
    line: int
    owner: str
    name: str
    # The names in the annotation of the owner, if that is a parameter.
    types: frozenset[str] = frozenset()


def is_private(name: str) -> bool:
    """Tell whether a name has one underscore in front."""
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in _EVERYBODYS


def room_of(path: Path, root: Path) -> str:
    """Return the room of a file."""
    relative = path.relative_to(root)
    if relative.parent == Path("core"):
        return str(relative.with_suffix(""))
    return str(relative.parent)


def _of_self(node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        return node.id in ("self", "cls")
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def defined(tree: ast.Module) -> set[str]:
    """Return the private names that a file defines: functions, attributes of self, class attributes and slots."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _of_self(node.value):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Assign) and "__slots__" in map(ast.unparse, node.targets):
            names |= {str(each.value) for each in ast.walk(node.value) if isinstance(each, ast.Constant)}
    return {name for name in names if is_private(name)}


def _identifiers(annotation: ast.expr | None) -> frozenset[str]:
    if annotation is None:
        return frozenset()
    return frozenset(each.id for each in ast.walk(annotation) if isinstance(each, ast.Name))


def accesses(path: Path, tree: ast.Module) -> list[Access]:
    """Return the places where a file uses a private name of another object, or imports one."""
    found: list[Access] = []

    def visit(node: ast.AST, types: dict[str, frozenset[str]]) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            types = {**types, **{each.arg: _identifiers(each.annotation) for each in named}}
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and not _of_self(node.value):
            of_owner = types.get(node.value.id, frozenset()) if isinstance(node.value, ast.Name) else frozenset()
            found.append(Access(path, node.lineno, ast.unparse(node.value), node.attr, of_owner))
        elif isinstance(node, ast.ImportFrom):
            private = [alias.name for alias in node.names if is_private(alias.name)]
            found.extend(Access(path, node.lineno, node.module or "", name) for name in private)
        for child in ast.iter_child_nodes(node):
            visit(child, types)

    visit(tree, {})
    return found


def find_violations(root: Path) -> list[Access]:
    """Return the uses of private names that the same room does not define."""
    known: dict[str, set[str]] = defaultdict(set)
    homes: dict[str, set[str]] = defaultdict(set)
    used: list[tuple[str, Access]] = []
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        room = room_of(path, root)
        known[room] |= defined(tree)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(room)
        used += [(room, access) for access in accesses(path, tree)]
    ours = set().union(*known.values())

    def allowed(room: str, access: Access) -> bool:
        if access.name not in ours:
            return True
        return access.name in known[room] and all(room in homes[name] for name in access.types if name in homes)

    return [access for room, access in used if not allowed(room, access)]


def main() -> int:
    """Print the violations; return 1 if there are any."""
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    violations = find_violations(root)
    for access in violations:
        print(f"{access.path}:{access.line}: {access.owner}.{access.name} is private to another room")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
