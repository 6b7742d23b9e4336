#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# The house rules, read off the text of the tree. `rules.py ROOT COMPILER FLAGS...` prints each breach and exits with 1 if there is one.
# Before it judges the tree it judges small bad examples: a rule that finds nothing in its own example is broken.
import pathlib
import re
import subprocess
import sys

MAX_HEADER_LINES = 450

# What a header may include of bila: these rooms or files, and its own room. Rooms are folders, the two backends one each.
BASE = {"config", "error", "version"}
POLICIES = {"view", "mask", "norm"}
MAY_INCLUDE = {
    "version": set(),
    "config": set(),
    "error": {"config", "version"},
    "view": BASE,
    "mask": BASE | {"view"},
    "norm": BASE | {"view"},
    "rule": BASE | {"view", "mask"},
    "feature": BASE | {"view"},
    "kernel": BASE | {"view"},
    "call": BASE | POLICIES,
    "form": BASE | POLICIES | {"call", "kernel"},
    "backend/cpu": BASE | POLICIES | {"feature", "call", "kernel", "form"},
    "backend/cuda": BASE | POLICIES | {"call", "kernel", "form"},
}
CHOSEN_BY_THE_CALLER = {"kernel/reference", "kernel/packets"}  # so no room knows them, nor they each other
SEES_EVERYTHING = {"bila", "cuda", "attend"}
MAY_INCLUDE_EIGEN = {"kernel/simd", "view/eigen"}
MAY_DEFINE_MACROS = {"config", "version"}

KEPT_AS_RECEIVED = {"tests/contract"}  # programs that must go on compiling byte for byte
SOURCE_SUFFIXES = {".hpp", ".cpp", ".cu", ".cmake", ".py", ".sh", ".yml"}
SOURCE_NAMES = {"CMakeLists.txt", "run", "portable"}
PROSE_SUFFIXES = {".md", ".json", ".in", ".txt"}


def without_comments(text):
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def numbered(pattern, text):
    """(line number, match) of every line of the text that the pattern is found in."""
    return [(n, m) for n, line in enumerate(text.splitlines(), 1) if (m := re.search(pattern, line))]


def room_of(name):
    folder = name.rpartition("/")[0]
    return folder or name


def header_breaches(name, text):
    """`name` is relative to include/bila and without suffix: kernel/eigen."""
    code = without_comments(text)
    room = room_of(name)

    for n, found in numbered(r'^\s*#\s*include\s*<bila/([\w/]+)\.hpp>', code):
        target = found.group(1)
        if name not in SEES_EVERYTHING and (target in CHOSEN_BY_THE_CALLER or room_of(target) not in MAY_INCLUDE.get(room, set()) | {room}):
            yield f"{n}: {name} must not include {target}"
    for n, _ in numbered(r'^\s*#\s*include\s*"', code):
        yield f'{n}: include bila\'s headers as <bila/...>'
    if name not in MAY_INCLUDE_EIGEN:
        for n, _ in numbered(r"<(unsupported/)?Eigen/|\bEigen::", code):
            yield f"{n}: Eigen belongs in {', '.join(sorted(MAY_INCLUDE_EIGEN))} only"

    for n, _ in numbered(r"\busing\s+namespace\b", code):
        yield f"{n}: using namespace in a header"
    for n, found in numbered(r"^\s*#\s*define\s+(\w+)", code):
        if name not in MAY_DEFINE_MACROS:
            yield f"{n}: macro {found.group(1)} outside config.hpp"
    for n, _ in numbered(r"^\s*#\s*(ifdef|ifndef)\s+BILA_|^\s*#\s*(el)?if\b.*\bdefined\s*\(?\s*BILA_", code):
        yield f"{n}: BILA_ macros are always defined: test their value with #if"

    for n, _ in numbered(r"\bnamespace\b[^;{]*::\s*inline\b", code):
        yield f"{n}: indexers such as Universal Ctags see nothing behind namespace a::inline b {{: one namespace a line"

    if "#pragma once" not in code:
        yield "1: no #pragma once"
    if (lines := text.count("\n")) > MAX_HEADER_LINES:
        yield f"{lines}: a header of more than {MAX_HEADER_LINES} lines"


def source_breaches(text):
    lines = text.splitlines()
    if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:2 if lines and lines[0].startswith("#!") else 1]):
        yield "1: the first line is not the SPDX line"


def sections_of(page):
    """The numbers of a page's sections, each an anchor and a heading: ## <a id="4.3"></a>4.3 Title."""
    return {m.group(1) for _, m in numbered(r'^#+ <a id="([\d.]+)"></a>\1\.? \S', page)}


def citation_breaches(text, sections):
    """Comments cite form/MATH.md by section, as MATH.md 2.4, 4.3."""
    for n, line in enumerate(text.splitlines(), 1):
        for cited in re.findall(r"\bMATH\.md ((?:\d[\d.]*\d|\d)(?:(?:, | and )\d\.\d+)*)", line):
            for section in re.findall(r"[\d.]+", cited):
                if section not in sections:
                    yield f"{n}: MATH.md has no section {section}"
        if found := re.search(r"(?<![-\w])math:?(?: section)? \d+\.\d", line):
            yield f"{n}: cite a section of form/MATH.md as MATH.md 4.3, not as {found.group()}"


def text_breaches(text):
    for n, found in numbered(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b", text):
        yield f"{n}: {found.group(1)}"
    for n, found in numbered(r"(^|[\s\"'=(<])(/(home|root|work|Users)/)", text):
        yield f"{n}: a path of one machine, {found.group(2)}"


def macros_of(compiler, flags, includes):
    answer = subprocess.run([compiler, "-std=c++20", "-dM", "-E", "-x", "c++", *flags, "-"], input=includes, text=True,
                            capture_output=True)
    if answer.returncode:
        sys.exit(answer.stderr)
    return set(re.findall(r"^#define (\w+)", answer.stdout, flags=re.M))


def macro_breaches(compiler, flags, foreign_includes, own_include):
    new = macros_of(compiler, flags, foreign_includes + own_include) - macros_of(compiler, flags, foreign_includes)
    for macro in sorted(new):
        if not macro.startswith("BILA_"):
            yield f"macro {macro} leaks out of bila.hpp"


def foreign_includes_of(headers):
    """All but the intrinsics, which differ by processor and come with Eigen."""
    found = {m.group() for text in headers.values() for _, m in numbered(r"^#include <(?!bila/)(?!\w*intrin\.h)[^>]+>", text)}
    return "".join(f"{include}\n" for include in sorted(found))


def check_the_rules(compiler, flags):
    """Each example breaks one rule and must be found by it; the good one breaks none."""
    good = "// SPDX-License-Identifier: Apache-2.0\n#pragma once\n#include <bila/view/tensor_view.hpp>\n#if BILA_EXCEPTIONS\n#endif\n"
    bad_headers = [
        ("view/shape", "#include <bila/mask/concepts.hpp>\n"),
        ("mask/all_ones", "#include <bila/form/full.hpp>\n"),
        ("form/full", "#include <bila/kernel/packets.hpp>\n"),
        ("form/full", "#include <bila/kernel/reference.hpp>\n"),
        ("kernel/packets", "#include <bila/kernel/reference.hpp>\n"),
        ("backend/cpu", "#include <bila/kernel/packets.hpp>\n"),
        ("kernel/contract", "#include <bila/backend/cpu/attend.hpp>\n"),
        ("form/full", "#include <bila/backend/cpu/threads.hpp>\n"),
        ("call/checks", "#include <bila/form/full.hpp>\n"),
        ("view/shape", "#include <bila/call/inputs.hpp>\n"),
        ("backend/cuda/attend", "#include <bila/backend/cpu/attend.hpp>\n"),
        ("error", "#include <bila/view/tensor_view.hpp>\n"),
        ("form/full", '#include "head.hpp"\n'),
        ("form/full", "#include <Eigen/Core>\n"),
        ("kernel/packets", "#include <Eigen/Core>\n"),
        ("kernel/packets", "using Eigen::internal::padd;\n"),
        ("mask/concepts", "Eigen::MatrixXf x;\n"),
        ("form/full", "  using namespace std;\n"),
        ("form/full", "#define HELPER 1\n"),
        ("error", "#ifdef BILA_EXCEPTIONS\n#endif\n"),
        ("error", "#if defined(BILA_EXCEPTIONS)\n#endif\n"),
        ("error", "namespace bila::inline v0_1 {\n}\n"),
        ("error", "namespace detail::inline BILA_UNIT {\n}\n"),
        ("error", "\n" * MAX_HEADER_LINES),
    ]
    broken = [f"no breach found in {name}: {text!r}" for name, text in bad_headers if not list(header_breaches(name, good + text))]
    if not list(header_breaches("form/full", good.replace("#pragma once", "// #pragma once"))):
        broken.append("a missing #pragma once is not found")
    if not list(source_breaches("#pragma once\n" + good)):
        broken.append("a missing SPDX line is not found")
    bad_texts = ["// TO" + "DO: later", "see /ho" + "me/someone/notes", 'path = "/wo' + 'rk/x"', "FIX" + "ME"]
    broken += [f"no breach found in {text!r}" for text in bad_texts if not list(text_breaches(text))]
    sections = sections_of('## <a id="4"></a>4. Gradients\n### <a id="4.3"></a>4.3 Permuted\n### <a id="4.4"></a>4.5 Mistaken\n')
    if sections != {"4", "4.3"}:
        broken.append(f"these are not the sections of the example: {sections}")
    bad_citations = ["// see MATH.md 4.4", "// (MATH.md 4.3, 2.4)", "// MATH.md 4.3 and 4.7", "// (mat" "h 4.3)", "// mat" "h: section 4.3"]
    broken += [f"no breach found in {text!r}" for text in bad_citations if not list(citation_breaches(text, sections))]
    if not list(macro_breaches(compiler, flags, "#include <vector>\n", "#define LEAKED 1\n")):
        broken.append("a leaked macro is not found")

    table = "**Your model in these words.** Gradients.\n\n| model | mask |\n|---|---|\n| RetNet | `fixed_decay` |\n\n**Norms**"
    if list(model_breaches(table, 'all("RetNet", mask);')) or not list(model_breaches(table, 'all("Hydra", mask);')):
        broken.append("a model without a test is not found")

    plain = "namespace bila {\ninline namespace v0_1 {\nnamespace cuda::detail {\n}\n}\n}\n"
    innocent = [*header_breaches("form/full", good + "// using namespace std, <Eigen/Core>\n" + plain), *source_breaches(good), *text_breaches(good),
                *citation_breaches("// MATH.md 4.3, see MATH.md 4. std::exp of <cmath> 17 times\n", sections),
                *header_breaches("kernel/simd", good + "#include <Eigen/Core>\n"),
                *macro_breaches(compiler, flags, "#include <vector>\n", "#include <vector>\n#define BILA_FINE 1\n")]
    return broken + [f"a breach found where there is none: {breach}" for breach in innocent]


def model_breaches(readme, test):
    """Models of the README's table "Your model in these words" that the test of its rows does not name."""
    _, _, rest = readme.partition("**Your model in these words.**")
    rows = [line.split("|")[1].strip() for line in rest.partition("\n\n**")[0].splitlines() if line.startswith("|")][2:]
    return [f'the model "{row}" of README.md is not in this test' for row in rows if f'"{row}"' not in test] if rows else ["no table"]


def main(root, compiler, *flags):
    if broken := check_the_rules(compiler, flags):
        sys.exit("The rules themselves are broken:\n" + "\n".join(broken))

    breaches = []
    sections = sections_of((root / "include/bila/form/MATH.md").read_text())
    include = root / "include"
    headers = {path: path.read_text() for path in sorted(include.rglob("*.hpp"))}
    for path, text in headers.items():
        name = path.relative_to(include / "bila").with_suffix("").as_posix()
        breaches += [f"{path.relative_to(root)}:{breach}" for breach in header_breaches(name, text)]
    for folder in ("include", "tests", "bench", "examples", "cmake", ".ci", ".github", "."):
        for path in sorted((root / folder).glob("*" if folder == "." else "**/*")):
            is_source = path.suffix in SOURCE_SUFFIXES or path.name in SOURCE_NAMES
            if not path.is_file() or not (is_source or path.suffix in PROSE_SUFFIXES):
                continue
            text = path.read_text()
            needs_licence = is_source and path.parent.relative_to(root).as_posix() not in KEPT_AS_RECEIVED
            found = [*text_breaches(text), *citation_breaches(text, sections), *(source_breaches(text) if needs_licence else [])]
            breaches += [f"{path.relative_to(root)}:{breach}" for breach in found]
    models = root / "tests/laws/family/models.test.cpp"
    found = model_breaches((root / "README.md").read_text(), models.read_text())
    breaches += [f"{models.relative_to(root)}:{breach}" for breach in found]
    breaches += macro_breaches(compiler, flags, foreign_includes_of(headers), "#include <bila/bila.hpp>\n")

    print("\n".join(breaches) or f"{len(headers)} headers, no breach")
    sys.exit(1 if breaches else 0)


main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
