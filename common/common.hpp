// SPDX-License-Identifier: MIT
// The headers of common/ that a trainer uses, but train/card.hpp, which its card.hpp includes.
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
