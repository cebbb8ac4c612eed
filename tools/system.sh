#!/usr/bin/env bash
# Installs what the tests need from the operating system, and only what is missing:
#   vulkan   a Vulkan loader and a device; where none answers, Mesa's software driver
#   layers   the Vulkan validation layers
#   glslang  glslangValidator and spirv-val, which compile and check the shaders
#   cxx      a C++ compiler, which runs the kernels' scalar functions on the host
# Usage: tools/system.sh vulkan glslang
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python

has() { command -v "$1" >/dev/null; }

vulkan_answers() { $python tools/vulkan_probe.py; }

layers_present() {
    local folder
    for folder in /usr/share /usr/local/share /etc /usr/local/etc "${XDG_DATA_HOME:-$HOME/.local/share}"; do
        [ -e "$folder/vulkan/explicit_layer.d/VkLayer_khronos_validation.json" ] && return 0
    done
    [ -n "${VK_LAYER_PATH:-}" ]
}

missing=()
for what in "$@"; do
    case $what in
        vulkan)
            if ! vulkan_answers; then
                if [ -n "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}" ]; then
                    echo "no Vulkan device answers through VK_DRIVER_FILES or VK_ICD_FILENAMES; unset or correct it" >&2
                    exit 1
                fi
                missing+=(libvulkan1 mesa-vulkan-drivers)
            fi
            ;;
        layers) layers_present || missing+=(vulkan-validationlayers) ;;
        glslang) { has glslangValidator && has spirv-val; } || missing+=(glslang-tools spirv-tools) ;;
        cxx) has g++ || has clang++ || missing+=(g++) ;;
        *)
            echo "tools/system.sh knows vulkan, layers, glslang and cxx, not $what" >&2
            exit 2
            ;;
    esac
done
[ ${#missing[@]} -gt 0 ] || exit 0

echo "system: installing ${missing[*]}"
if ! has apt-get; then
    echo "apt-get is not on this machine: install your distribution's counterpart of: ${missing[*]}" >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    has sudo || {
        echo "as root, run: apt-get install ${missing[*]}" >&2
        exit 1
    }
    as_root=(sudo)
fi
log=$(mktemp)
if ! { "${as_root[@]}" apt-get update -q &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -q --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "could not install ${missing[*]}; all of it is in $log" >&2
    exit 1
fi
rm -f "$log"
case " ${missing[*]} " in
    *" mesa-vulkan-drivers "*)
        vulkan_answers || {
            echo "Mesa's driver is installed and still no Vulkan device answers" >&2
            exit 1
        }
        ;;
esac
