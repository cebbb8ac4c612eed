#!/usr/bin/env bash
# Installs what the tests need from the operating system, and only what is missing:
#   vulkan   a Vulkan loader and a device; where none answers, Mesa's software driver
#   swiftshader  a second software Vulkan driver in .tools/swiftshader, out of Debian's chromium-common, which is not
#            installed; where apt has no such package it is left out, unless RLX_REQUIRE_SWIFTSHADER=1
#   layers   the Vulkan validation layers
#   glslang  glslangValidator and spirv-val, which compile and check the shaders
#   browser  a headless Chromium, where apt has one by itself; elsewhere the tests of pages are left out
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

swiftshader=.tools/swiftshader

# Unpacks the driver and its description; says what is wrong where that does not work.
unpack_swiftshader() {
    local folder=$1 as_root=()
    has apt-get && has dpkg-deb || { echo "there is no apt-get or no dpkg-deb here"; return 1; }
    if ! (cd "$folder" && apt-get download -q chromium-common) >"$folder/log" 2>&1; then
        [ "$(id -u)" -eq 0 ] || as_root=(sudo -n)
        "${as_root[@]}" apt-get update -q >"$folder/log" 2>&1 || true
        (cd "$folder" && apt-get download -q chromium-common) >"$folder/log" 2>&1 ||
            { tail -n 1 "$folder/log"; return 1; }
    fi
    dpkg-deb -x "$folder"/chromium-common_*.deb "$folder/all" >"$folder/log" 2>&1 || { tail -n 1 "$folder/log"; return 1; }
    mkdir -p "$swiftshader"
    # The description comes last: it stands for the whole.
    mv "$folder/all/usr/lib/chromium/libvk_swiftshader.so" "$swiftshader/" &&
        mv "$folder/all/usr/lib/chromium/vk_swiftshader_icd.json" "$swiftshader/"
}

get_swiftshader() {
    local folder why
    [ ! -e "$swiftshader/vk_swiftshader_icd.json" ] || return 0
    echo "system: unpacking SwiftShader, a second software Vulkan driver"
    folder=$(mktemp -d)
    chmod 755 "$folder"  # apt downloads as a user of its own
    if ! why=$(unpack_swiftshader "$folder" 2>&1); then
        rm -rf "$folder"
        echo "system: no SwiftShader, so the tests run on one software driver: $why"
        [ "${RLX_REQUIRE_SWIFTSHADER:-0}" = 0 ] || exit 1
        return 0
    fi
    rm -rf "$folder"
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
        swiftshader) get_swiftshader ;;
        layers) layers_present || missing+=(vulkan-validationlayers) ;;
        browser)
            if ! { has chromium-headless-shell || has chromium || has google-chrome; }; then
                if apt-cache show chromium-headless-shell >/dev/null 2>&1; then
                    missing+=(chromium-headless-shell)
                else
                    echo "system: apt has no chromium-headless-shell, so no test opens a page"
                fi
            fi
            ;;
        glslang) { has glslangValidator && has spirv-val; } || missing+=(glslang-tools spirv-tools) ;;
        cxx) has g++ || has clang++ || missing+=(g++) ;;
        *)
            echo "tools/system.sh knows vulkan, swiftshader, layers, glslang, browser and cxx, not $what" >&2
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
