"""Parameters of a layer come one by one, on any thread, and leave as the device's weights."""

from __future__ import annotations

import random
import threading

import torch

from trainer.architecture.parameters import Weight
from trainer.step.fused_weights import Assembly

WEIGHTS = (
    Weight("qkv", (("q", (4, 3)), ("k", (2, 3)), ("v", (2, 3)))),
    Weight("norm", (("norm", (3,)),)),
)
VALUES = {"q": torch.arange(12.0), "k": torch.arange(6.0) + 100, "v": torch.arange(6.0) + 200, "norm": torch.ones(3)}


def test_a_weight_is_there_with_its_last_parameter_in_any_order() -> None:
    assembly = Assembly(WEIGHTS, torch.float32)
    for step in range(3):
        names = random.Random(step).sample(sorted(VALUES), len(VALUES))
        found = {}
        for number, name in enumerate(names):
            assembly.place(name).copy_(VALUES[name] + step)
            complete = assembly.written(name)
            if complete is not None:
                found[complete[0].name] = complete[1]
            assert ("qkv" in found) == ({"q", "k", "v"} <= set(names[: number + 1]))
        assert torch.equal(found["qkv"], torch.cat([VALUES[name] + step for name in "qkv"]))
        assert torch.equal(found["norm"], VALUES["norm"] + step)


def test_the_elements_are_new_each_time() -> None:
    """A device in the host's memory keeps them as its weight."""
    assembly = Assembly(WEIGHTS, torch.bfloat16)
    found = []
    for value in (1.0, 2.0):
        assembly.place("norm").fill_(value)
        complete = assembly.written("norm")
        assert complete is not None
        found.append(complete[1])
    assert found[0].tolist() == [1.0] * 3
    assert found[1].tolist() == [2.0] * 3
    assert found[0].dtype is torch.bfloat16


def test_threads_complete_each_weight_once() -> None:
    assembly = Assembly(WEIGHTS, torch.float32)
    for _ in range(200):
        complete = []

        def work(name: str, complete: list = complete) -> None:
            assembly.place(name).copy_(VALUES[name])
            result = assembly.written(name)
            if result is not None:
                complete.append(result)

        threads = [threading.Thread(target=work, args=(name,)) for name in VALUES]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(weight.name for weight, _ in complete) == ["norm", "qkv"]
