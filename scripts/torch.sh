# Sourced after venv.sh by the scripts that make an environment of their own for tests with a real library on PyTorch.

is_made() { # home, stamp
    [ -f "$1"/headrace ] && [ "$2" = "$(cat "$1"/headrace)" ]
}

# Makes the environment $1 with PyTorch for CPUs; sets $pip and $uv, which install into it.
make_home_with_torch() { # home, version of PyTorch
    find_python
    if ! [ -x "$1"/bin/python ] || ! python_will_do "$1"/bin/python; then "$python" -m venv --clear "$1"; fi
    pip="$1/bin/python -m pip install --quiet --disable-pip-version-check"
    # pip goes by its own settings; where those know no build for CPUs, uv knows where PyTorch keeps them.
    $pip uv
    uv="$1/bin/python -m uv pip install --quiet --python $1"
    $pip "torch==$2+cpu" 2>/dev/null || $uv --torch-backend cpu "torch==$2" || fail "PyTorch could not be installed."
}
