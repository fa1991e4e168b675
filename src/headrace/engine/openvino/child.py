"""OpenVINO GenAI in a process of its own: `python -m headrace.engine.openvino.child`."""

from headrace.engine.openvino.parameters import OpenVinoParameters
from headrace.engine.stepped.batch import Model
from headrace.engine.stepped.child import serve


def _load(parameters: OpenVinoParameters) -> Model:
    from headrace.engine.openvino.model import OpenVinoModel

    return OpenVinoModel(parameters)


if __name__ == "__main__":
    serve(OpenVinoParameters, _load)
