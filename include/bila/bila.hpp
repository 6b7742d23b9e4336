// SPDX-License-Identifier: Apache-2.0
// bila: bidirectional linear attention. Everything for host code.
#pragma once

#include <bila/attend.hpp>
#include <bila/backend/cpu/backend.hpp>
#include <bila/backend/cpu/features.hpp>
#include <bila/backend/cpu/threads.hpp>
#include <bila/call/gradients.hpp>
#include <bila/call/inputs.hpp>
#include <bila/call/state.hpp>
#include <bila/error.hpp>
#include <bila/feature/maps.hpp>
#include <bila/form/automatic.hpp>
#include <bila/form/chunkwise.hpp>
#include <bila/form/delta.hpp>
#include <bila/form/full.hpp>
#include <bila/form/recurrent.hpp>
#include <bila/kernel/packets.hpp>
#include <bila/kernel/reference.hpp>
#include <bila/mask/all_ones.hpp>
#include <bila/mask/concepts.hpp>
#include <bila/mask/fixed_decay.hpp>
#include <bila/mask/gates.hpp>
#include <bila/mask/log_linear.hpp>
#include <bila/mask/selective_decay.hpp>
#include <bila/mask/two_sided.hpp>
#include <bila/mask/weighed_keys.hpp>
#include <bila/norm/max_one.hpp>
#include <bila/norm/none.hpp>
#include <bila/norm/row_sum.hpp>
#include <bila/rule/delta.hpp>
#include <bila/version.hpp>
#include <bila/view/eigen.hpp>
#include <bila/view/storage.hpp>
#include <bila/view/tensor_view.hpp>
