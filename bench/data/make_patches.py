#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cut a picture into square patches and write them as one .npy array of shape [channels, tokens, side * side].

    make_patches.py PICTURE.png PATCHES.npy [--side 8]

Tokens run over the picture row by row, and so do the pixels inside a patch. Whole patches only: a rest at the right or
bottom border is dropped. Needs numpy and matplotlib (which reads the picture); an alpha channel is dropped.
"""

import argparse

import matplotlib.image
import numpy as np


def patches(picture, side):
    """[height, width, channels] -> [channels, tokens, side * side]"""
    rows, columns = picture.shape[0] // side, picture.shape[1] // side
    whole = picture[: rows * side, : columns * side]
    grid = whole.reshape(rows, side, columns, side, picture.shape[2])
    return grid.transpose(4, 0, 2, 1, 3).reshape(picture.shape[2], rows * columns, side * side)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture")
    parser.add_argument("output")
    parser.add_argument("--side", type=int, default=8)
    arguments = parser.parse_args()

    picture = matplotlib.image.imread(arguments.picture)  # a PNG of 8 bits arrives as value / 255 in float32
    if picture.dtype != np.uint8:
        picture = np.rint(picture * 255).astype(np.uint8)
    picture = np.atleast_3d(picture)[:, :, :3]
    np.save(arguments.output, np.ascontiguousarray(patches(picture, arguments.side)))


if __name__ == "__main__":
    main()
