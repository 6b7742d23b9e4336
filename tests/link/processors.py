#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Links one source compiled for several processors in every order, and runs each program here and, where qemu-x86_64 is installed, on
a processor without AVX. Nothing that a unit shares with another may be compiled for its own processor alone.

    processors.py COMPILER MAIN_OBJECT UNIT_OBJECT...
"""
import itertools
import re
import shutil
import subprocess
import sys
import tempfile


def shared_for_one_processor(unit):
    """Functions of a unit that the linker may give to others, and that hold instructions of AVX."""
    symbols = subprocess.run(["nm", unit], check=True, capture_output=True, text=True).stdout
    shared = {line.split()[-1] for line in symbols.splitlines() if re.search(r" [WVu] ", line)}
    code = subprocess.run(["objdump", "-d", "--no-show-raw-insn", unit], check=True, capture_output=True, text=True).stdout
    found = set()
    for function in re.split(r"\n(?=[0-9a-f]+ <)", code):
        name = re.match(r"\s*[0-9a-f]+ <(.+)>:", function)
        if name and name[1] in shared and re.search(r"\tv[a-z0-9]+ ", function):
            found.add(name[1])
    return found


def main():
    compiler, main_object, *units = sys.argv[1:]
    emulators = [[]]
    if shutil.which("qemu-x86_64"):
        emulators.append(["qemu-x86_64", "-cpu", "Nehalem"])
    else:
        print("qemu-x86_64 is not installed: only this processor ran the programs")
    failed = 0
    if shutil.which("objdump") and shutil.which("nm"):
        plain = {line.split()[-1] for line in subprocess.run(["nm", units[0]], check=True, capture_output=True, text=True).stdout.splitlines()}
        for unit in units[1:]:
            for name in sorted(shared_for_one_processor(unit) & plain):
                failed += 1
                print(f"{unit}: {name} may replace the plain unit's")
    with tempfile.TemporaryDirectory() as folder:
        for order in itertools.permutations(units):
            program = f"{folder}/program"
            subprocess.run([compiler, main_object, *order, "-pthread", "-o", program], check=True)
            for emulator in emulators:
                ran = subprocess.run([*emulator, program], capture_output=True, text=True)
                if ran.returncode != 0:
                    failed += 1
                    print(f"{' '.join(emulator)} exit status {ran.returncode}, linked in the order\n  " + "\n  ".join(order), ran.stdout)
    print(f"{failed} failures")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
