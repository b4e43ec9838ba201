"""Products on the host: bfloat16 ones by way of float32 are the sums of exact products, rounded once."""

from __future__ import annotations

import pytest
import torch

from trainer.device.products import HostProducts


@pytest.mark.parametrize("shapes", [((5, 64), (64, 7)), ((3, 5, 64), (3, 64, 7))])
def test_a_product_is_rounded_once(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator).bfloat16() for shape in shapes)
    exact = a.double() @ b.double()
    with HostProducts(by_float32=True):
        products = (a @ b, torch.matmul(a, b), a.matmul(b))
    for product in products:
        assert product.dtype is torch.bfloat16
        # bfloat16 has 8 bits: half a unit in the last place, and float32's own error.
        assert (product.double() - exact).abs().le(exact.abs() * (2**-8 + 1e-6) + 1e-5).all()


@pytest.mark.parametrize("batch", [(), (3,)])
def test_matrices_on_their_side_are_multiplied_as_they_are(batch: tuple[int, ...]) -> None:
    """As weights and probabilities come: transposed, or some columns of a wider one transposed."""
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn((*batch, 64, 12), generator=generator).bfloat16()
    other = torch.randn((*batch, 64, 7), generator=generator).bfloat16()
    for left in (whole.mT, whole[..., 2:9].mT):
        exact = left.double() @ other.double()
        with HostProducts(by_float32=True):
            for product, expected in ((left @ other, exact), (other.mT @ left.mT, exact.mT)):
                assert product.is_contiguous()
                assert (product.double() - expected).abs().le(expected.abs() * (2**-8 + 1e-6) + 1e-5).all()


def test_a_matrix_that_multiplies_each_of_a_batch() -> None:
    a, b = torch.randn(3, 5, 8).bfloat16(), torch.randn(8, 7).bfloat16()
    with HostProducts(by_float32=True):
        torch.testing.assert_close(a @ b, (a.float() @ b.float()).bfloat16(), rtol=2**-7, atol=1e-5)


def test_other_dtypes_and_operations_are_left_alone() -> None:
    a = torch.randn(4, 4)
    with HostProducts(by_float32=True):
        assert torch.equal(a @ a, torch.mm(a, a))
        assert (a.bfloat16() + 1).dtype is torch.bfloat16
        assert (a.double() @ a.double()).dtype is torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_product_in_memory_of_ours_is_torchs_own(dtype: torch.dtype) -> None:
    a, b, batch = (torch.randn(shape).to(dtype) for shape in ((300, 40), (40, 500), (3, 40, 500)))
    expected = a @ b, a.t().t() @ batch[1], batch.mT @ batch
    with HostProducts(by_float32=False):
        for mine, theirs in zip((a @ b, a @ batch[1], batch.mT @ batch), expected, strict=True):
            # The same, but for the order of sums, which may follow the memory's alignment.
            torch.testing.assert_close(mine, theirs, rtol=2**-7 if dtype is torch.bfloat16 else 1e-5, atol=1e-4)
            assert mine.is_contiguous()
