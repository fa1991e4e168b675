"""Weights in PyTorch, and files of other weights: `python -m bench.weights_torch` with one job as JSON on its input.

It runs in the environment that scripts/transformers makes, and is the only file here that needs it.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import gguf
import msgspec
import torch
import transformers

from bench.perplexity import Foretold, Window
from bench.process import pss_kb, scratch
from bench.weights_row import Dequantise, Job, Requantise, Row, Speak, Task, spoken
from headrace.engine.transformers.engine import TransformersEngine
from headrace.engine.transformers.model.loading import quantised


def main() -> None:
    """What the libraries print goes to stderr; what is asked for, to stdout."""
    report = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    transformers.utils.logging.disable_progress_bar()
    report.write(msgspec.json.encode(_done(msgspec.json.decode(sys.stdin.buffer.read(), type=Job))))
    report.close()


def _done(job: Job) -> Row | None:
    match job:
        case Dequantise():
            dequantise(Path(job.source), Path(job.folder))
        case Requantise():
            requantise(Path(job.source), Path(job.target), job.kind)
        case Speak():
            return served(Path(job.folder), job.weights, job.task)
    return None


def dequantise(source: Path, folder: Path) -> None:
    """Full precision for everybody: the GGUF file's weights in 32 bits. Takes most of a minute."""
    where: dict[str, Any] = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    model.hf_quantizer = None  # else the library thinks that the weights were still quantised, and does not write them
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


def requantise(source: Path, target: Path, kind: str) -> None:
    """`target` has the matrices of `source` as `kind` (F16, Q8_0, Q4_0). Norms stay as they are, and embeddings, which
    are also the output, in 8 bits where the rest has 4: llama.cpp's own tool spares them too."""
    reader, wanted = gguf.GGUFReader(source), gguf.GGMLQuantizationType[kind]
    writer = _with_header(reader, target, kind)
    for tensor in reader.tensors:
        kept = len(tensor.shape) == 1 or (kind == "Q4_0" and tensor.name == "token_embd.weight")
        data = tensor.data if kept else gguf.quantize(gguf.dequantize(tensor.data, tensor.tensor_type), wanted)
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type if kept else wanted)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()


def _with_header(reader: Any, target: Path, kind: str) -> Any:
    """A file to be written, which says of itself what `reader`'s does."""
    own = ("general.architecture", "general.file_type")
    writer = gguf.GGUFWriter(target, reader.fields[own[0]].contents())
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind}"])
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in own:
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    return writer


def served(folder: Path, weights: Any, task: Task) -> Row:
    """The engine speaks; the same weights, loaded here as the engine loads them, foretell."""
    rate, answers, memory = asyncio.run(_spoken(folder, weights, task))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **quantised(weights)).eval()
    with torch.inference_mode():
        parts = [_foretold(model, window) for window in task.windows]
    return Row(
        weights_mib=_written(model) / 2**20,
        memory_mib=memory,
        rate=rate,
        answers=answers,
        foretold=Foretold(
            logprobs=[one for part in parts for one in part.logprobs],
            likeliest=[one for part in parts for one in part.likeliest],
        ),
    )


async def _spoken(folder: Path, weights: Any, task: Task) -> tuple[float, list[str], float]:
    with scratch() as home:
        settings: dict[str, Any] = {"weights": weights, "threads": task.threads, "log": home / "log"}
        async with TransformersEngine(folder, slots=1, context=max(task.longest, 512), **settings) as engine:
            rate, answers = await spoken(engine, task)
            assert engine.pid is not None
            return rate, answers, pss_kb([engine.pid]) / 1024


def _foretold(model: Any, window: Window) -> Foretold:
    thought = model(torch.tensor([window])).logits[0, :-1].float().log_softmax(-1)
    said = torch.tensor(window[1:])
    return Foretold(
        logprobs=thought.gather(1, said[:, None]).squeeze(1).tolist(), likeliest=thought.argmax(-1).tolist()
    )


class _Counter:
    """A file that only counts."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: bytes) -> int:
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        return None


def _written(model: Any) -> int:
    """How large a file the weights make, with what their quantisation needs to be undone."""
    counter = _Counter()
    torch.save(model.state_dict(), counter)
    return counter.size


if __name__ == "__main__":
    main()
