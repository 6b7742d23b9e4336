# SPDX-License-Identifier: Apache-2.0
# Stands for an Eigen too old for bila; only its version file is ever read.
message(FATAL_ERROR "An Eigen of version 3.3.9 was accepted")
