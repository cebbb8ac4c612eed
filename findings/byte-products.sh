#!/usr/bin/env bash
# Claim: LLVM's intrinsic for x86's products of bytes, llvm.x86.avx512.vpdpbusd.512, takes its bytes as <16 x i32> in LLVM 20
#   (llvmlite 0.47) and as <64 x i8> in LLVM 22 (llvmlite 0.50), under one name; so does that of 16-bit products.
# A good guess says: an intrinsic's types belong to its name, as those of overloaded intrinsics do, so that text that one
#   version compiles the other compiles or refuses by the name.
# What is so: LLVM 22 rewrites text in the old types without a word and prints the new ones; LLVM 20 refuses the new types.
#   So a module that LLVM 22 has parsed and printed no longer compiles in LLVM 20, while text in the old types does in both.
# Why it matters to a tensor runtime: one that writes kernels as LLVM's text for whatever llvmlite is installed loses its
#   int8 kernels on older ones, on processors with these instructions alone; and LLVM's text is no format to keep.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/products.py" <<'PY'
import llvmlite
import llvmlite.binding as llvm

print("llvmlite", llvmlite.__version__, "LLVM", ".".join(map(str, llvm.llvm_version_info)))
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(cpu="icelake-server")
for name, types in (("vpdpbusd", ("<16 x i32>", "<64 x i8>")), ("vpdpwssd", ("<16 x i32>", "<32 x i16>"))):
    for t in types:
        intrinsic = f"<16 x i32> @llvm.x86.avx512.{name}.512(<16 x i32>"
        text = (f"declare {intrinsic}, {t}, {t})\n"
                f"define <16 x i32> @f(<16 x i32> %c, {t} %a, {t} %b) {{\n"
                f"  %r = call {intrinsic} %c, {t} %a, {t} %b)\n  ret <16 x i32> %r\n}}\n")
        try:
            module = llvm.parse_assembly(text)
            module.verify()
            printed = next(line for line in str(module).splitlines() if line.startswith("declare"))
            compiled = name in machine.emit_assembly(module)
            print(name, t, "compiled" if compiled else "expanded", "and printed as", printed.split("(")[1].split(")")[0])
        except RuntimeError as error:
            print(name, t, "refused:", str(error).strip().splitlines()[0])
PY
for version in 0.47.0 0.50.0; do
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/python" -m pip install -q --disable-pip-version-check "llvmlite==$version"
    "$folder/$version/bin/python" "$folder/products.py" | tee "$folder/$version.txt"
done
old='busd <16 x i32> compiled.*busd <64 x i8> refused.*wssd <16 x i32> compiled.*wssd <32 x i16> refused'
new='busd <16 x i32> compiled and printed as <16 x i32>, <64 x i8>.*busd <64 x i8> compiled.*wssd <16 x i32> compiled and printed as <16 x i32>, <32 x i16>.*wssd <32 x i16> compiled'
if tr '\n' ' ' <"$folder/0.47.0.txt" | grep -q "$old" && tr '\n' ' ' <"$folder/0.50.0.txt" | grep -q "$new"; then
    exit 0
fi
echo "the behaviour has changed"
exit 1
