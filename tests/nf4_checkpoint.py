"""A checkpoint in 4 bits, as transformers saves one whose bitsandbytes quantizes the constants of the blocks too."""

import json
from pathlib import Path

import torch
from bitsandbytes.functional import quantize_4bit
from safetensors.torch import load_file, save_file

_SETTINGS = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "load_in_8bit": False,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_storage": "uint8",
}


def quantize_twice(model: Path) -> None:
    """The folder's model, in place."""
    [weights] = model.glob("*.safetensors")
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(weights).items()}
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        tensors[name], state = quantize_4bit(tensors[name], quant_type="nf4", compress_statistics=True)
        tensors |= {f"{name}.{part}": value for part, value in state.as_dict(packed=True).items()}
    save_file(tensors, weights, metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = _SETTINGS
    (model / "config.json").write_text(json.dumps(config))
