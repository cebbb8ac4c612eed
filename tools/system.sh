#!/usr/bin/env bash
# Installs what the tests need from the operating system, and only what is missing:
#   vulkan   a Vulkan loader and a device; where none answers, Mesa's software driver
#   glslang  glslangValidator and spirv-val, which compile and check the shaders
# Usage: tools/system.sh vulkan glslang
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python

install() {
    echo "system: installing $*"
    if ! command -v apt-get >/dev/null; then
        echo "apt-get is not on this machine: install your distribution's counterpart of: $*" >&2
        exit 1
    fi
    local run=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || { echo "as root, run: apt-get install $*" >&2; exit 1; }
        run=(sudo)
    fi
    local log
    log=$(mktemp)
    if ! { "${run[@]}" apt-get update -q &&
        "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "could not install: $* (log in $log)" >&2
        exit 1
    fi
    rm -f "$log"
}

for what in "$@"; do
    case $what in
        vulkan)
            status=0
            $python tools/vulkan_probe.py || status=$?
            if [ "$status" -ne 0 ]; then
                if [ -n "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}" ]; then
                    echo "no Vulkan device answers through VK_DRIVER_FILES or VK_ICD_FILENAMES; unset it, or correct it" >&2
                    exit 1
                fi
                install libvulkan1 mesa-vulkan-drivers
                $python tools/vulkan_probe.py || { echo "Mesa is installed and still no Vulkan device answers" >&2; exit 1; }
            fi
            ;;
        glslang)
            if ! command -v glslangValidator >/dev/null || ! command -v spirv-val >/dev/null; then
                install glslang-tools spirv-tools
            fi
            ;;
        *)
            echo "tools/system.sh knows vulkan and glslang, not $what" >&2
            exit 2
            ;;
    esac
done
