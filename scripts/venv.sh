# Sourced by the other scripts: a Python that will do, and a virtual environment of our own in .venv.
# Plain sh, because on a fresh machine nothing else is sure to be there.

fail() { # what, hint
    printf 'headrace: %s\n' "$1" >&2
    [ -z "${2:-}" ] || printf '  %s\n' "$2" >&2
    exit 1
}

# The embedded model comes as prebuilt binaries; say so before anything is downloaded.
require_platform() {
    supported="Supported: glibc Linux on x86-64 and arm64, macOS on arm64. Elsewhere: pip install headrace, and a model server of your own (--engine-url)."
    case "$(uname -s)-$(uname -m)" in
    Linux-x86_64 | Linux-aarch64 | Linux-arm64)
        if ldd --version 2>&1 | grep -qi musl; then fail "this Linux uses musl, for which there are no prebuilt engines." "$supported"; fi
        ;;
    Darwin-arm64) ;;
    *) fail "$(uname -s) on $(uname -m) has no prebuilt engine." "$supported" ;;
    esac
}

python_will_do() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; }

# Sets $python. PYTHON=… chooses one.
find_python() {
    for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if python_will_do "$python"; then return; fi
    done
    fail "Python 3.11 to 3.14 is needed, and none of ${PYTHON:-python3, python3.11 … python3.14} is one." \
        "Debian, Ubuntu: apt install python3 python3-venv. macOS: brew install python. Or PYTHON=/path/to/python3.12 $0"
}

# What was installed is remembered beside it, so that the second time costs nothing.
stamp_of() { cat pyproject.toml; echo "$1"; }

is_installed() { # extras
    [ -x .venv/bin/python ] && python_will_do .venv/bin/python && [ -f .venv/headrace-"$1" ] &&
        [ "$(stamp_of "$1")" = "$(cat .venv/headrace-"$1")" ]
}

install_extras() { # extras
    if is_installed "$1"; then return; fi
    find_python
    if [ ! -x .venv/bin/python ] || ! python_will_do .venv/bin/python; then
        "$python" -c 'import venv, ensurepip' 2>/dev/null ||
            fail "$python cannot make virtual environments." "Debian, Ubuntu: apt install python3-venv"
        "$python" -m venv --clear .venv || fail "no virtual environment could be made in $PWD/.venv." "Is the folder writable?"
    fi
    quiet=--quiet
    if [ -t 1 ]; then quiet=; fi
    # shellcheck disable=SC2086
    .venv/bin/python -m pip install $quiet --disable-pip-version-check --editable ".[$1]" ||
        fail "pip could not install the packages." "Is the network there? Run $0 again to go on."
    stamp_of "$1" >.venv/headrace-"$1"
}
