"""The benchmark: Headrace beside a bare protocol, a naive app and a rival, in one run. README.md says how."""
