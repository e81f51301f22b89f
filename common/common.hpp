// SPDX-License-Identifier: MIT
// All headers of common/ that a trainer uses.
#pragma once
#include "comm/communicator.hpp"
#include "compute/bus.hpp"
#include "compute/stream.hpp"
#include "memory/state.hpp"
#include "train/adam.hpp"
#include "train/data.hpp"
#include "train/model.hpp"
#include "train/options.hpp"
#include "train/step.hpp"
