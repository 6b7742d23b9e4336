// SPDX-License-Identifier: Apache-2.0
// bila on a GPU: everything for .cu files. Eigen is not part of it.
#pragma once

#include <bila/attend.hpp>
#include <bila/backend/cuda/backend.hpp>
#include <bila/backend/cuda/launch.hpp>
#include <bila/backend/cuda/tuning.hpp>
#include <bila/form/automatic.hpp>
#include <bila/form/chunkwise.hpp>
#include <bila/form/full.hpp>
#include <bila/form/recurrent.hpp>
#include <bila/mask/all_ones.hpp>
#include <bila/mask/fixed_decay.hpp>
#include <bila/mask/selective_decay.hpp>
#include <bila/mask/two_sided.hpp>
#include <bila/norm/max_one.hpp>
#include <bila/norm/none.hpp>
#include <bila/norm/row_sum.hpp>
#include <bila/version.hpp>
