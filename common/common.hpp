// SPDX-License-Identifier: MIT
// Everything a trainer uses.
#pragma once
#include "adam.hpp"
#include "communicator.hpp"
#include "data.hpp"
#include "digest.hpp"
#include "judge.hpp"
#include "layout.hpp"
#include "mlp.hpp"
#include "options.hpp"
#include "phase.hpp"
#include "plan.hpp"
#include "reduction.hpp"
#include "stream.hpp"
#include "tensor.hpp"
