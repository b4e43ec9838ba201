"""The compiler settings of graphs that multiply matrices."""

from __future__ import annotations

import pytest

from graphcache.graph import TensorSpec
from graphcache.toolchain.base import check_settings
from trainer.catalogs.layer import PRODUCTS, products


def spec(dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec("x", dtype, shape)


@pytest.mark.parametrize("others", [(), (spec("float32", 64, 64),)], ids=["alone", "beside a float32 accumulator"])
def test_bfloat16_products_have_the_measured_settings(others: tuple[TensorSpec, ...]) -> None:
    assert products(spec("bfloat16", 64, 64), *others) == PRODUCTS


def test_float32_products_are_not_rounded_to_bfloat16() -> None:
    settings = products(spec("float32", 64, 64), spec("float32", 64, 64))
    check_settings(settings)
    assert settings == PRODUCTS | {"implicit-casts": "off"}


@pytest.mark.parametrize(
    ("dtype", "settings"), [("bfloat16", {}), ("float32", {"implicit-casts": "off"})], ids=["bfloat16", "float32"]
)
def test_small_products_leave_the_tactic_to_the_compiler(dtype: str, settings: dict[str, str]) -> None:
    assert products(spec(dtype, 64, 64), spec(dtype, 8, 64)) == settings


def test_a_vector_beside_the_matrices_does_not_make_a_product_small() -> None:
    assert products(spec("bfloat16", 64, 64), spec("bfloat16", 64)) == PRODUCTS
