#!/usr/bin/env bash
# Makes .venv and installs rlx (editable) with the named extras into it; does nothing where that is done already.
# Usage: tools/venv.sh EXTRA[,EXTRA...]          PYTHON=/path/to/python3.12 tools/venv.sh dev
set -euo pipefail
cd "$(dirname "$0")/.."
extras=${1:?name the extras to install, for example: tools/venv.sh dev}

# ensurepip is asked for too: Debian's python3 lacks it until python3-venv is installed. Version managers leave stubs on
# the PATH that exist and do not run, so each candidate is run.
usable() {
    "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    local name
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
        if usable "$name"; then
            echo "$name"
            return
        fi
    done
    {
        echo "rlx needs Python 3.11 or newer with its venv module; tried: ${PYTHON:-python3, python3.11 to python3.14}."
        echo "Debian or Ubuntu: apt-get install python3 python3-venv; elsewhere name one: make PYTHON=/path/to/python3.12"
    } >&2
    exit 1
}

if ! { [ -x .venv/bin/python ] && usable .venv/bin/python; }; then
    python=$(find_python)
    echo "venv: making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
fi

# One stamp for each set of extras. The folder is part of it because an editable install points at it.
stamp=.venv/.installed-${extras//,/+}
want="$PWD $(sha256sum <pyproject.toml)"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    exit 0
fi
echo "venv: installing rlx[$extras] into .venv (some minutes the first time)"
.venv/bin/python -m pip install -qq --disable-pip-version-check --editable ".[$extras]"
printf '%s\n' "$want" >"$stamp"
