"""The names of metrics stand once; functions take the values they use, not all settings or the logger."""

import ast

import pytest

from hydrl import metric_names
from tests.conftest import ROOT

NAMES = {value for name, value in vars(metric_names).items() if name.isupper()}
FILES = sorted((ROOT / "src" / "hydrl").rglob("*.py"))


def test_no_other_module_spells_the_name_of_a_metric():
    others = [path for path in FILES if path.name != "metric_names.py"]
    assert len(others) > 100
    for path in others:
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        strings = {node.value for node in nodes if isinstance(node, ast.Constant)}
        assert not strings & NAMES, path


@pytest.mark.parametrize(("type_name", "room"), [("Settings", "config"), ("RunLogger", "run/logging")])
def test_no_other_room_has_a_parameter_of_its_type(type_name, room):
    for path in FILES:
        if str(path.relative_to(ROOT / "src" / "hydrl").parent) != room:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                kind = node.annotation if isinstance(node, ast.arg) else None
                assert not (kind and type_name in ast.unparse(kind).split()), f"{path}: {node.arg}"
