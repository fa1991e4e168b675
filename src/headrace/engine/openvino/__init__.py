"""The second embedded engine: OpenVINO GenAI in a process of its own."""
