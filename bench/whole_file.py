# SPDX-License-Identifier: Apache-2.0
"""A file of results that appears whole or not at all."""

import os
import pathlib


def write(path, content):
    """Text or bytes; what stops the program leaves what was there before."""
    partial = pathlib.Path(f"{path}.partial")
    partial.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(partial, path)
