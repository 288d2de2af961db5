import pytest

from engine.quantization.layers import Quantization, head_scheme, layer_scheme
from engine.quantization.weight import Scheme

KINDS = ("qkv", "output", "gate_up", "down")


@pytest.mark.parametrize(("quantization", "scheme"), [("none", None), ("int8", "int8")])
def test_8_bits_are_of_all_layers(quantization: Quantization, scheme: Scheme | None) -> None:
    assert head_scheme(quantization, 576) == scheme
    assert {layer_scheme(quantization, kind, 576) for kind in KINDS} == {scheme}


def test_in_4_bits_are_gate_and_up_and_the_rest_in_6() -> None:
    schemes = [layer_scheme("int4", kind, 576) for kind in KINDS]
    assert schemes == ["int6", "int6", "int4", "int6"]
    assert head_scheme("int4", 576) == "int6"


def test_layers_whose_size_6_bits_do_not_suit_have_8() -> None:
    assert head_scheme("int4", 96) == "int8"
    assert layer_scheme("int4", "down", 96) == "int8"
    assert layer_scheme("int4", "gate_up", 96) == "int4"
