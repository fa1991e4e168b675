"""A model from its files, its weights as they were asked for. Nothing is downloaded, and no code of a model runs."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.engine.stepped.batch import Model
from headrace.engine.transformers.model.loaded import Loaded
from headrace.engine.transformers.model.paged import PagedModel
from headrace.engine.transformers.model.separate import SeparateModel
from headrace.engine.transformers.model.tokenizer import TransformersTokenizer
from headrace.engine.transformers.parameters import TransformersParameters, Weights


def load(parameters: TransformersParameters) -> Model:
    """Takes seconds. Raises whatever the library raises, and ValueError."""
    torch.set_num_threads(parameters.threads)
    transformers.utils.logging.disable_progress_bar()
    where = _where(Path(parameters.model_path))
    library = AutoModelForCausalLM.from_pretrained(
        **where, use_safetensors=True, dtype=torch.float32, attn_implementation="sdpa", **quantised(parameters.weights)
    ).eval()
    tokenizer = TransformersTokenizer(AutoTokenizer.from_pretrained(**where))
    kind = PagedModel if parameters.together else SeparateModel
    return kind(Loaded(library, tokenizer), parameters)


def _where(path: Path) -> dict[str, Any]:
    folder = {"local_files_only": True, "trust_remote_code": False}
    if path.is_file():
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name, **folder}
    return {"pretrained_model_name_or_path": str(path), **folder}


def quantised(weights: Weights) -> dict[str, Any]:
    """What the library is told, so that it loads the weights as they were asked for."""
    match weights:
        case "full":
            return {}
        case "int8":
            from torchao.quantization import Int8WeightOnlyConfig
            from transformers import TorchAoConfig

            return {"quantization_config": TorchAoConfig(Int8WeightOnlyConfig()), "device_map": "cpu"}
        case "nf4":
            from transformers import BitsAndBytesConfig

            nf4 = BitsAndBytesConfig(
                load_in_4bit=True,
                bnb_4bit_quant_type="nf4",
                bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=torch.float32,
            )
            return {"quantization_config": nf4, "device_map": "cpu"}
