#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# `snippets.py ROOT COMPILER FLAGS...` compiles and runs the C++ blocks of README.md and include/bila/README.md, and looks for every public
# name in the latter. A block with an #include is a file of its own, for nvcc if it includes bila/cuda.hpp: without nvcc it is left out,
# which is said. Every other block is the body of a function, but for its structs, which the blocks after it see too. What a block
# says it prints ("// prints: ...") must be printed.
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-unused"]  # a block names things and leaves them

# What entry points and forms pass to each other, and types that nobody need spell.
INSIDE = {"choice", "geometry", "geometry_of", "hand_to_handler", "has_row_scale", "head_rows", "is_cross", "keys_of", "only_states",
          "raise", "row_scales", "rows", "segment", "segments", "segments_of", "sequences_of", "validate", "version_number"}
STRUCTS_WITH_MEMBERS = {"cpu", "chunkwise", "inputs", "outputs", "saved", "output_gradients", "gradients", "state"}


def public_names(include):
    """Types, concepts and functions at namespace scope, outside detail, of the headers of the CPU; members of those a caller fills in."""
    for path in sorted(include.rglob("*.hpp")):
        name = path.relative_to(include).with_suffix("").as_posix()
        if re.match(r"kernel/|backend/cuda/|cuda|config|form/(?!full$|recurrent$|chunkwise$|automatic$)", name):
            continue
        text = re.sub(r"//(?! namespace)[^\n]*", "", path.read_text())
        text = re.sub(r"^namespace [^\n]*\bdetail\b.*?^}  // namespace [^\n]*\bdetail\b[^\n]*$", "", text, flags=re.S | re.M)
        for line in text.splitlines():
            if found := re.match(r"(?:requires.*\) )?(?:struct|class|enum class|concept|using) (\w+)", line):
                yield name, found.group(1)
            elif re.match(r"(?!namespace|template|return)[A-Za-z\[]", line) and (found := re.match(r"[^(]*?[\w>&*\]] (\w+)\(", line)):
                yield name, found.group(1)
        for struct, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", text, flags=re.S | re.M):
            if struct in STRUCTS_WITH_MEMBERS:
                for line in re.findall(r"^  (\w[^(\n]*;)", body, flags=re.M):
                    yield from ((name, member) for member in re.findall(r"(\w+)(?: = |\{\})", line))


def blocks_of(page):
    """(line, code) of every block that is marked as C++."""
    text = page.read_text()
    return [(text[:m.start()].count("\n") + 2, m.group(1)) for m in re.finditer(r"^```cpp\n(.*?)^```$", text, flags=re.S | re.M)]


def run(*command):
    answer = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if answer.returncode:
        sys.exit(" ".join(map(str, command)) + "\n" + answer.stdout + answer.stderr)
    return answer.stdout


def main(root, compiler, *flags):
    api = root / "include/bila/README.md"
    page = api.read_text()
    missing = [f"{name}: {word}" for name, word in public_names(root / "include/bila")
               if word not in INSIDE and not re.search(rf"\b{word}\b", page)]
    if missing:
        sys.exit(f"{api} does not mention\n" + "\n".join(missing))

    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "program"
        fragments, calls, printed = '#include "snippets.hpp"\n', "", []
        for path in (root / "README.md", api):
            for line, code in blocks_of(path):
                place = f'#line {line} "{path}"\n'
                if "bila/cuda.hpp" in code:
                    if nvcc := shutil.which("nvcc"):
                        source = pathlib.Path(folder) / "block.cu"
                        source.write_text(place + code)
                        run(nvcc, "-std=c++20", "-arch=sm_90", "-ptx", "-Xcicc", "-O0", source, "-I", root / "include", "-o", program)
                    else:
                        print(f"{path}:{line}: not compiled, there is no nvcc")
                elif "#include" in code:
                    source = pathlib.Path(folder) / "block.cpp"
                    source.write_text(place + code)
                    run(compiler, "-std=c++20", *flags, *WARNINGS, source, "-o", program)
                    run(program)
                else:
                    number = f"block_{line}_of_{'api' if path == api else 'readme'}"
                    # Structs leave their lines behind, so that an error names the line of the page.
                    structs = "".join(f'#line {line + code[:m.start()].count(chr(10))} "{path}"\n{m.group()}'
                                      for m in re.finditer(r"^struct .*?^};\n", code, flags=re.S | re.M))
                    rest = re.sub(r"^struct .*?^};\n", lambda m: "\n" * m.group().count("\n"), code, flags=re.S | re.M)
                    fragments += f"{structs}void {number}();\nvoid {number}() {{\n{place}{rest}}}\n"
                    calls += f"  {number}();\n"
                    printed += re.findall(r"// prints: (.*)", code)
        source = pathlib.Path(folder) / "blocks.cpp"
        source.write_text(f"{fragments}int main() {{\n{calls}}}\n")
        run(compiler, "-std=c++20", *flags, *WARNINGS, "-I", pathlib.Path(__file__).parent, source, "-o", program)
        output = run(program).splitlines()
        if missing := [words for words in printed if words not in output]:
            sys.exit(f"not printed: {missing}, but\n" + "\n".join(output))
    print(f"{calls.count('();')} blocks in functions, every other one in a file of its own")


main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
